//! The hook on a VM's tap that sends its packets for chosen prefixes into the tap of a link
//! (link/bpf/divert.bpf.c).
//!
//! Nothing is pinned. A [`Diversion`] holds its hook by a descriptor: when it is dropped, or its
//! process dies, the host routes the VM's traffic as usual at once. The rules are one inner map;
//! new rules are filled in first and then replace the old map as a whole, so that every packet
//! meets one complete set. Counters of prefixes that stay are carried over.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use ipnet::IpNet;
use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder};
use libbpf_rs::{Program, ProgramInput};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::types::{self, divert_key, divert_kind, divert_rule};

/// The compiled program and its maps.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/divert.bpf.o"));
/// Names in it: the hook; the map of the link's tap, of the rules, and of the variable that tells
/// whether the link is up, which libbpf puts a part of the object's name before.
const PROGRAM: &str = "divert";
const LINK_TAP: &str = "link_tap";
const IN_FORCE: &str = "in_force";
const VARIABLES: &str = ".bss";

/// The action for packets to a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The host routes them: an exception from a shorter prefix.
    Never,
    /// They go through the link; while it is down, the host routes them.
    DivertOrPass,
    /// They go through the link; while it is down they are dropped. This ends with the process that
    /// diverts: then the host routes them.
    DivertOrDrop,
}

impl Action {
    fn number(self) -> u32 {
        match self {
            Self::Never => types::divert_action::DIVERT_NEVER,
            Self::DivertOrPass => types::divert_action::DIVERT_OR_PASS,
            Self::DivertOrDrop => types::divert_action::DIVERT_OR_DROP,
        }
    }
}

/// A rule; for each destination the longest matching prefix applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Destinations.
    pub prefix: IpNet,
    /// Action for packets to them.
    pub action: Action,
}

/// Sources that a VM may use; an empty list allows all. With others, packets are treated as while
/// the link is down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Ethernet addresses.
    pub macs: Vec<[u8; 6]>,
    /// Prefixes of IPv4 and IPv6.
    pub prefixes: Vec<IpNet>,
}

impl Sources {
    fn list_keys(&self) -> Vec<divert_key> {
        let mut keys: Vec<_> =
            self.prefixes.iter().map(|prefix| key_of_prefix(prefix, FROM)).collect();
        if keys.is_empty() {
            keys.extend([FROM.v4, FROM.v6].map(key_of_any));
        }
        let mac = |mac: &[u8; 6]| {
            let mut key = key_of_any(divert_kind::DIVERT_FROM_MAC);
            key.bits += 48;
            key.addr[..6].copy_from_slice(mac);
            key
        };
        keys.extend(self.macs.iter().map(mac));
        if self.macs.is_empty() {
            keys.push(key_of_any(divert_kind::DIVERT_FROM_MAC));
        }
        keys
    }
}

/// Counters of one rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleCounters {
    /// Packets diverted; a super-packet is one.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Packets that came while the link was down.
    pub missed: u64,
    /// Packets with other sources than [`Sources`].
    pub forged: u64,
}

impl std::ops::Add for RuleCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
            missed: self.missed.wrapping_add(other.missed),
            forged: self.forged.wrapping_add(other.forged),
        }
    }
}

/// The hook on one VM's tap, as long as it lives.
pub struct Diversion {
    // Dropped first, so that no packet passes a hook whose maps are being freed.
    _link: Link,
    object: Object,
    up: MapHandle,
    in_force: MapHandle,
    rules: Vec<Rule>,
    sources: Sources,
    trie: MapHandle,
    /// Counts of earlier tries for the prefixes of this one.
    past: HashMap<IpNet, RuleCounters>,
}

impl Diversion {
    /// Diverts packets from the VM behind tap `ifindex` into the egress of tap `link_ifindex`, once
    /// [`Diversion::set_up`] reports that the link is up; until then rules act as while it is down.
    ///
    /// Both taps are in the network namespace of the calling thread. Another link, with other
    /// rules, may be attached to the same tap: the first rule that diverts takes the packet.
    pub fn attach(
        ifindex: u32,
        link_ifindex: u32,
        rules: &[Rule],
        sources: Sources,
    ) -> Result<Self> {
        let rules = check_rules(rules)?;
        let refused = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => {
                Error::Permission { what: "load the program that diverts".into() }
            }
            _ => Error::Load { source },
        };
        let mut builder = ObjectBuilder::default();
        let object = builder
            .name("vsnoop_divert")
            .and_then(|builder| builder.open_memory(OBJECT))
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(refused)?;
        let (up, in_force) = (open_map(&object, VARIABLES)?, open_map(&object, IN_FORCE)?);
        open_map(&object, LINK_TAP)?
            .update(&0u32.to_ne_bytes(), &link_ifindex.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::bpf(format!("divert into interface {link_ifindex}")))?;
        let trie = fill_trie(&rules, &sources)?;
        exchange_trie(&in_force, &trie)?;
        // After from_vm, whichever is attached first: from_vm goes before all others.
        let link = attach_last(&find_program(&object), ifindex)?;
        let past = HashMap::new();
        Ok(Self { _link: link, object, up, in_force, rules, sources, trie, past })
    }

    /// Sets whether the link is up, from the next packet on.
    pub fn set_up(&self, is_up: bool) -> Result<()> {
        self.up
            .update(&0u32.to_ne_bytes(), &u32::from(is_up).to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::bpf("say whether the link is up"))
    }

    /// Replaces the rules; after an error the old ones stay.
    pub fn set_rules(&mut self, rules: &[Rule]) -> Result<()> {
        let rules = check_rules(rules)?;
        let trie = fill_trie(&rules, &self.sources)?;
        exchange_trie(&self.in_force, &trie)?;
        // No hook uses the old trie now, so its counters are final. If they cannot be read,
        // the new rules apply all the same, and count from 0.
        let before = self.read_counters().unwrap_or_default();
        self.past = before.into_iter().map(|(rule, counted)| (rule.prefix, counted)).collect();
        self.past.retain(|prefix, _| rules.iter().any(|rule| rule.prefix == *prefix));
        (self.rules, self.trie) = (rules, trie);
        Ok(())
    }

    /// The rules in force, each with its counters since the prefix got its first rule.
    pub fn read_counters(&self) -> Result<Vec<(Rule, RuleCounters)>> {
        let counters = self.rules.iter().map(|rule| {
            let found = self.trie.lookup(key_of_prefix(&rule.prefix, TO).as_bytes(), MapFlags::ANY);
            let found = found.map_err(Error::bpf(format!("read the rule of {}", rule.prefix)))?;
            let now = found
                .and_then(|bytes| divert_rule::read_from_bytes(&bytes).ok())
                .unwrap_or_default();
            let divert_rule { packets, bytes, missed, forged, .. } = now;
            let now = RuleCounters { packets, bytes, missed, forged };
            Ok((*rule, now + self.past.get(&rule.prefix).copied().unwrap_or_default()))
        });
        counters.collect()
    }

    /// Instructions that the verifier processed.
    pub fn verified_instructions(&self) -> Result<u32> {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
        // SAFETY: an open program, and a zeroed record with its true length.
        let result = unsafe {
            libbpf_sys::bpf_obj_get_info_by_fd(
                find_program(&self.object).as_fd().as_raw_fd(),
                std::ptr::from_mut(&mut info).cast(),
                &mut len,
            )
        };
        if result < 0 {
            let error = libbpf_rs::Error::from_raw_os_error(-result);
            return Err(Error::bpf("read the program that diverts")(error));
        }
        Ok(info.verified_insns)
    }

    /// Runs the hook on a frame that is not sent, and returns its verdict (`enum tcx_action_base`).
    /// It is counted.
    pub fn run_hook(&mut self, frame: &[u8]) -> Result<i32> {
        let input = ProgramInput { data_in: Some(frame), ..ProgramInput::default() };
        let program = self.object.progs_mut().find(|program| program.name() == PROGRAM);
        let program = program.unwrap_or_else(|| unreachable!("{PROGRAM} is the object's program"));
        let run = program.test_run(input);
        run.map(|run| run.return_value as i32).map_err(Error::bpf("run the program that diverts"))
    }
}

impl std::fmt::Debug for Diversion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Diversion").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Prefixes without host bits; each once.
fn check_rules(rules: &[Rule]) -> Result<Vec<Rule>> {
    let mut seen = std::collections::HashSet::new();
    let whole = |rule: &Rule| Rule { prefix: rule.prefix.trunc(), ..*rule };
    let rules: Vec<_> = rules.iter().map(whole).collect();
    match rules.iter().find(|rule| !seen.insert(rule.prefix)) {
        Some(rule) => Err(Error::TwoRules { prefix: rule.prefix }),
        None => Ok(rules),
    }
}

/// Kinds of addresses of the two families (`enum divert_kind`).
#[derive(Clone, Copy)]
struct Kinds {
    v4: u32,
    v6: u32,
}

const TO: Kinds = Kinds { v4: divert_kind::DIVERT_TO_V4, v6: divert_kind::DIVERT_TO_V6 };
const FROM: Kinds = Kinds { v4: divert_kind::DIVERT_FROM_V4, v6: divert_kind::DIVERT_FROM_V6 };

/// All addresses of a kind.
fn key_of_any(kind: u32) -> divert_key {
    divert_key { bits: u32::BITS, kind, addr: [0; 16] }
}

fn key_of_prefix(prefix: &IpNet, kinds: Kinds) -> divert_key {
    let mut addr = [0; 16];
    let kind = match prefix.network() {
        IpAddr::V4(v4) => {
            addr[..4].copy_from_slice(&v4.octets());
            kinds.v4
        }
        IpAddr::V6(v6) => {
            addr = v6.octets();
            kinds.v6
        }
    };
    divert_key { bits: u32::BITS + u32::from(prefix.prefix_len()), kind, addr }
}

/// A trie of these rules and sources, which no hook uses yet.
fn fill_trie(rules: &[Rule], sources: &Sources) -> Result<MapHandle> {
    let sources = sources.list_keys();
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
        ..Default::default()
    };
    let trie = MapHandle::create(
        MapType::LpmTrie,
        Some("divert_rules"),
        size_of::<divert_key>() as u32,
        size_of::<divert_rule>() as u32,
        (rules.len() + sources.len()) as u32,
        &opts,
    )
    .map_err(Error::bpf("make a map of rules"))?;
    for rule in rules {
        let value = divert_rule { action: rule.action.number(), ..Default::default() };
        trie.update(
            key_of_prefix(&rule.prefix, TO).as_bytes(),
            value.as_bytes(),
            MapFlags::NO_EXIST,
        )
        .map_err(Error::bpf(format!("write the rule of {}", rule.prefix)))?;
    }
    let source = divert_rule::default();
    for key in sources {
        // A list may have one twice.
        trie.update(key.as_bytes(), source.as_bytes(), MapFlags::ANY)
            .map_err(Error::bpf("write the sources"))?;
    }
    Ok(trie)
}

/// Replaces the trie. When this returns, no hook uses the old one.
fn exchange_trie(in_force: &MapHandle, trie: &MapHandle) -> Result<()> {
    let descriptor = trie.as_fd().as_raw_fd().to_ne_bytes();
    in_force
        .update(&0u32.to_ne_bytes(), &descriptor, MapFlags::ANY)
        .map_err(Error::bpf("put the rules in force"))
}

fn open_map(object: &Object, name: &str) -> Result<MapHandle> {
    let mut maps = object.maps();
    let map = maps.find(|map| map.name().as_encoded_bytes().ends_with(name.as_bytes()));
    let map = map.unwrap_or_else(|| unreachable!("{name} is a map of the object"));
    MapHandle::try_from(&map).map_err(Error::bpf(format!("open map {name}")))
}

fn find_program(object: &Object) -> Program<'_> {
    let mut programs = object.progs();
    let found = programs.find(|program| program.name() == PROGRAM);
    found.unwrap_or_else(|| unreachable!("{PROGRAM} is the object's program"))
}

/// Attaches the program to the ingress of a tap, after those that are there. libbpf-rs has no tcx
/// links yet; libbpf has.
fn attach_last(program: &Program, ifindex: u32) -> Result<Link> {
    let opts = libbpf_sys::bpf_tcx_opts {
        sz: size_of::<libbpf_sys::bpf_tcx_opts>() as _,
        flags: libbpf_sys::BPF_F_AFTER,
        ..Default::default()
    };
    // SAFETY: the program is loaded and alive, the options are complete; the result is checked
    // before use.
    let link = unsafe {
        libbpf_sys::bpf_program__attach_tcx(
            program.as_libbpf_object().as_ptr(),
            ifindex as i32,
            &opts,
        )
    };
    let Some(link) = NonNull::new(link) else {
        let what = format!("attach {PROGRAM} to interface {ifindex}");
        return Err(Error::bpf(what)(std::io::Error::last_os_error().into()));
    };
    // SAFETY: a new link, owned by this value alone.
    Ok(unsafe { Link::from_ptr(link) })
}
