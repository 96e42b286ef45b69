//! The hook on a VM's tap that sends its packets for chosen prefixes into the tap of a link
//! (bpf/divert.bpf.c).
//!
//! Nothing is pinned. A [`Diversion`] holds its hook by a descriptor: when it is dropped, or its
//! process dies, the host routes the VM's traffic as usual at once. The rules are one inner map;
//! new rules are filled in first and then replace the old map as a whole, so that every packet
//! meets one complete set. Counters of prefixes that stay are carried over.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ipnet::IpNet;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder};
use vsnoop_flow::types::{self, divert_key, divert_kind, divert_rule};

use crate::account::{ProgramInfo, program_info};
use crate::error::{Error, Result};
use crate::inject;
use crate::link::tcx_link;
use crate::objects::divert::{Map, Program};
use crate::objects::{self, Named};
use crate::record::Record;

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
    /// Of Ethernet.
    pub macs: Vec<[u8; 6]>,
    /// Of IPv4 and IPv6.
    pub prefixes: Vec<IpNet>,
}

impl Sources {
    fn keys(&self) -> Vec<divert_key> {
        let mut keys: Vec<_> = self.prefixes.iter().map(|prefix| key(prefix, FROM)).collect();
        if keys.is_empty() {
            keys.extend([FROM.v4, FROM.v6].map(any));
        }
        let mac = |mac: &[u8; 6]| {
            let mut key = any(divert_kind::DIVERT_FROM_MAC);
            key.bits += 48;
            key.addr[..6].copy_from_slice(mac);
            key
        };
        keys.extend(self.macs.iter().map(mac));
        if self.macs.is_empty() {
            keys.push(any(divert_kind::DIVERT_FROM_MAC));
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
        let rules = checked(rules)?;
        let refused = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => {
                Error::Permission { what: "load the program that diverts".into() }
            }
            _ => Error::Load { what: "the program that diverts".into(), source },
        };
        let mut builder = ObjectBuilder::default();
        let object = builder
            .name("vsnoop_divert")
            .and_then(|builder| builder.open_memory(objects::DIVERT))
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(refused)?;
        let (up, in_force) = (open(&object, Map::Bss)?, open(&object, Map::InForce)?);
        objects::map(&object, Map::LinkTap)
            .update(&0u32.to_ne_bytes(), &link_ifindex.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::bpf(format!("divert into interface {link_ifindex}")))?;
        let trie = fill(&rules, &sources)?;
        exchange(&in_force, &trie)?;
        // After from_vm, whichever is attached first: from_vm goes before all others.
        let name = format!("interface {ifindex}");
        let link = tcx_link(&object, Program::Divert, ifindex, &name, libbpf_sys::BPF_F_AFTER)?;
        // SAFETY: a new link, owned by this value alone.
        let link = unsafe { Link::from_ptr(link) };
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
        let rules = checked(rules)?;
        let trie = fill(&rules, &self.sources)?;
        exchange(&self.in_force, &trie)?;
        // No hook uses the old trie now, so its counters are final. If they cannot be read,
        // the new rules apply all the same, and count from 0.
        let before = self.counters().unwrap_or_default();
        self.past = before.into_iter().map(|(rule, counted)| (rule.prefix, counted)).collect();
        self.past.retain(|prefix, _| rules.iter().any(|rule| rule.prefix == *prefix));
        (self.rules, self.trie) = (rules, trie);
        Ok(())
    }

    /// The rules in force, each with its counters since the prefix got its first rule.
    pub fn counters(&self) -> Result<Vec<(Rule, RuleCounters)>> {
        let counters = self.rules.iter().map(|rule| {
            let found = self.trie.lookup(key(&rule.prefix, TO).as_bytes(), MapFlags::ANY);
            let found = found.map_err(Error::bpf(format!("read the rule of {}", rule.prefix)))?;
            let now = found.and_then(|bytes| divert_rule::from_bytes(&bytes)).unwrap_or_default();
            let divert_rule { packets, bytes, missed, forged, .. } = now;
            let now = RuleCounters { packets, bytes, missed, forged };
            Ok((*rule, now + self.past.get(&rule.prefix).copied().unwrap_or_default()))
        });
        counters.collect()
    }

    /// The hook, with the kernel's own accounting.
    pub fn program(&self) -> Result<ProgramInfo> {
        program_info(self.descriptor()).map_err(Error::bpf("read the program that diverts"))
    }

    /// Runs the hook on a frame that is not sent, and returns its verdict (`enum tcx_action_base`).
    /// It is counted.
    pub fn run_hook(&self, frame: &[u8]) -> Result<i32> {
        let run = inject::run(&self.descriptor(), 0, 0, frame, 1);
        run.map(|run| run.verdict).map_err(Error::bpf("run the program that diverts"))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        let program = objects::program(&self.object, Program::Divert);
        // SAFETY: the program is loaded, and its descriptor open as long as the object, which
        // `self` owns.
        unsafe { BorrowedFd::borrow_raw(program.as_fd().as_raw_fd()) }
    }
}

impl std::fmt::Debug for Diversion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Diversion").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Prefixes without host bits; each once.
fn checked(rules: &[Rule]) -> Result<Vec<Rule>> {
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
fn any(kind: u32) -> divert_key {
    divert_key { bits: u32::BITS, kind, addr: [0; 16] }
}

fn key(prefix: &IpNet, kinds: Kinds) -> divert_key {
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
fn fill(rules: &[Rule], sources: &Sources) -> Result<MapHandle> {
    let sources = sources.keys();
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
        trie.update(key(&rule.prefix, TO).as_bytes(), value.as_bytes(), MapFlags::NO_EXIST)
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
fn exchange(in_force: &MapHandle, trie: &MapHandle) -> Result<()> {
    let descriptor = trie.as_fd().as_raw_fd().to_ne_bytes();
    in_force
        .update(&0u32.to_ne_bytes(), &descriptor, MapFlags::ANY)
        .map_err(Error::bpf("put the rules in force"))
}

fn open(object: &Object, map: Map) -> Result<MapHandle> {
    MapHandle::try_from(&objects::map(object, map))
        .map_err(Error::bpf(format!("open map {}", map.name())))
}
