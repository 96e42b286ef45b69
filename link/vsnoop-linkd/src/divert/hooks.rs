//! The hooks on VMs' taps, one for each `[[divert]]`, and whether they divert.
//!
//! A hook diverts while its peer has a session and has said in its handshake that it takes all
//! prefixes of the table; an older peer, or one that is configured otherwise, takes none, and no
//! packet is lost there. A peer of etcd may come later, and go: the hook stays, and treats its
//! packets as while a peer is down (`when_down`). A VM's tap may go and come back, with another
//! index: looked at each second, it is hooked again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tracing::{info, warn};
use vsnoop_divert::{Diversion, Rule, RuleCounters, Sources};

use super::rules;
use super::taps::{DivertTap, DivertTaps};
use crate::causes::with_causes;
use crate::config::{Config, Divert, Place, SourceFilter};
use crate::control::DivertState;
use crate::threads::shared::Shared;
use crate::threads::slots::Slots;
use vsnoop_link::slots::PeerSlot;

/// How often taps are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Why a table diverts nothing whose peer is not known.
const UNKNOWN: &str = "neither the file nor etcd names it";

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("the link's tap {tap} was deleted; start the link again")]
    TapDeleted { tap: String },
    #[error("{interface} is not a tap, and only a VM's tap can be diverted")]
    NotATap { interface: String },
    #[error(transparent)]
    Find(#[from] vsnoop_netdev::Error),
    #[error("diverting what comes from {interface}")]
    Attach {
        interface: String,
        #[source]
        error: vsnoop_divert::Error,
    },
}

type Result<T> = std::result::Result<T, HookError>;

/// A hook while its tap is there.
struct Attached {
    ifindex: u32,
    diversion: Diversion,
    is_up: bool,
}

/// One `[[divert]]`.
pub struct DivertHook {
    pub divert: Divert,
    pub state: DivertState,
    /// Why it does not divert, all of it.
    reason: Option<String>,
    /// Its prefixes that the peer does not accept.
    not_taken: Vec<IpNet>,
    /// Name of the divert tap that it sends to.
    pub divert_tap: String,
    /// `None`: etcd does not name it now.
    peer: Option<PeerSlot>,
    divert_tap_ifindex: u32,
    rules: Vec<Rule>,
    attached: Option<Attached>,
    /// Counters of the hooks on earlier taps of that name, by prefix of the table.
    past: Vec<RuleCounters>,
}

pub struct DivertHooks {
    pub hooks: Vec<DivertHook>,
    shared: Arc<Shared>,
    looked: Option<Instant>,
    /// Packets of peers are not routed, and why.
    pub trouble: Option<String>,
}

impl DivertHooks {
    /// Hooks the taps that are there. Says what forbids it altogether, such as the kernel.
    pub fn new(config: &Config, shared: Arc<Shared>, peers: &Slots<PeerSlot>) -> Result<Self> {
        let mut hooks = list_hooks(config, shared.divert_taps.as_ref(), peers);
        for hook in &mut hooks {
            hook.follow_tap()?;
        }
        Ok(Self { hooks, shared, looked: None, trouble: None })
    }

    /// The hooks of another configuration. Those that it has in common with this one are to be
    /// taken from here ([`Self::reload`]); the others are attached, and do not divert yet.
    pub fn prepare_hooks(
        &self,
        config: &Config,
        divert_taps: Option<&DivertTaps>,
        peers: &Slots<PeerSlot>,
    ) -> Result<Vec<DivertHook>> {
        let mut hooks = list_hooks(config, divert_taps, peers);
        for hook in hooks.iter_mut().filter(|hook| !self.hooks.iter().any(|old| old.is_same(hook)))
        {
            hook.follow_tap()?;
        }
        Ok(hooks)
    }

    /// Stops those that do not stay: the divert tap that they send to may be another interface's
    /// from now on, and so may the number of their peer be another peer's.
    pub fn stop_leaving(&mut self, staying: &[DivertHook]) {
        let stays = |old: &DivertHook, new: &DivertHook| old.is_same(new) && old.peer == new.peer;
        let leaving =
            self.hooks.iter_mut().filter(|old| !staying.iter().any(|new| stays(old, new)));
        for hook in leaving {
            let Some(attached) = hook.attached.as_mut().filter(|attached| attached.is_up) else {
                continue;
            };
            match attached.diversion.set_up(false) {
                Ok(()) => attached.is_up = false,
                // Without the hook all goes its ordinary way.
                Err(_) => hook.attached = None,
            }
        }
    }

    /// Goes on with these hooks, and with its own of the same kind.
    pub fn reload(&mut self, hooks: Vec<DivertHook>, shared: Arc<Shared>) {
        self.shared = shared;
        let mut before = std::mem::replace(&mut self.hooks, hooks);
        for hook in &mut self.hooks {
            if let Some(at) = before.iter().position(|old| old.is_same(hook)) {
                let old = before.swap_remove(at);
                *hook = DivertHook { divert: hook.divert.clone(), peer: hook.peer, ..old };
            } else {
                hook.go_on_counting(&before);
            }
        }
        // Those that are left are detached here, when the new ones are there.
    }

    /// Has the hooks divert what may be diverted now. `takes`: what a peer lets in;
    /// `None` while it has no session.
    pub fn follow_peers<'a>(&mut self, takes: impl Fn(PeerSlot) -> Option<&'a [IpNet]>) {
        let now = Instant::now();
        if self.looked.is_none_or(|looked| now - looked >= LOOK) {
            self.looked = Some(now);
            for hook in &mut self.hooks {
                if let Err(error) = hook.follow_tap() {
                    hook.log_state(DivertState::Failed, Some(with_causes(&error)));
                }
            }
            let ready = self
                .shared
                .divert_taps
                .as_ref()
                .map_or(Ok(()), |divert_taps| divert_taps.prepare_again());
            let trouble = ready.err().map(|error| with_causes(&error));
            if trouble != self.trouble {
                trouble.iter().for_each(|trouble| warn!("{trouble}"));
                self.trouble = trouble;
            }
        }
        for hook in &mut self.hooks {
            hook.follow_peer(hook.peer.and_then(&takes));
        }
    }
}

/// The hooks of a configuration, not attached yet.
fn list_hooks(
    config: &Config,
    divert_taps: Option<&DivertTaps>,
    peers: &Slots<PeerSlot>,
) -> Vec<DivertHook> {
    let hook = |(index, divert): (usize, &Divert)| -> Option<DivertHook> {
        let own = |tap: &DivertTap| tap.interface.as_deref() == Some(divert.interface.as_str());
        let (_, divert_tap) = divert_taps?.all().find(|(_, tap)| own(tap))?;
        Some(DivertHook {
            divert: divert.clone(),
            state: DivertState::NoInterface,
            reason: None,
            not_taken: Vec::new(),
            divert_tap: divert_tap.port.name().to_owned(),
            peer: peers.find(&divert.peer),
            divert_tap_ifindex: divert_tap.ifindex,
            rules: rules::of_table(config, index),
            attached: None,
            past: vec![RuleCounters::default(); divert.prefixes.len()],
        })
    };
    config.diverts.iter().enumerate().filter_map(hook).collect()
}

impl DivertHook {
    /// Whether it does the same, wherever in the file it stands and whatever number its peer has.
    fn is_same(&self, other: &Self) -> bool {
        let bare = |hook: &Self| Divert { place: Place::default(), ..hook.divert.clone() };
        bare(self) == bare(other)
            && self.divert_tap_ifindex == other.divert_tap_ifindex
            && self.rules == other.rules
    }

    /// Goes on where hooks for the same prefixes of the interface have stopped.
    fn go_on_counting(&mut self, before: &[Self]) {
        let same = before.iter().filter(|old| old.divert.interface == self.divert.interface);
        for old in same {
            for (prefix, counted) in old.divert.prefixes.iter().zip(old.read_counters()) {
                if let Some(at) = self.divert.prefixes.iter().position(|own| own == prefix) {
                    self.past[at] = counted;
                }
            }
        }
    }

    /// Hooks the tap if it has come, or has come again. The hook goes when there is nothing to
    /// divert into.
    fn follow_tap(&mut self) -> Result<()> {
        let found = ifindex_of(&self.divert.interface);
        let is_divert_tap_there = ifindex_of(&self.divert_tap) == Some(self.divert_tap_ifindex);
        if let Some(attached) = self
            .attached
            .take_if(|attached| !is_divert_tap_there || Some(attached.ifindex) != found)
        {
            let counted = attached.diversion.read_counters().unwrap_or_default();
            self.past = self.counted_with(&counted);
        }
        let (Some(ifindex), None) = (found, &self.attached) else { return Ok(()) };
        if !is_divert_tap_there {
            return Err(HookError::TapDeleted { tap: self.divert_tap.clone() });
        }
        // The name may be of something else by now.
        let interface = || self.divert.interface.clone();
        let device = vsnoop_netdev::find(&self.divert.interface)?;
        if device.is_some_and(|found| found.tap.is_none()) {
            return Err(HookError::NotATap { interface: interface() });
        }
        let SourceFilter { macs, addresses, .. } = &self.divert.sources;
        let macs = macs.iter().map(|mac| mac.0).collect();
        let sources = Sources { macs, prefixes: addresses.clone() };
        let diversion = Diversion::attach(ifindex, self.divert_tap_ifindex, &self.rules, sources)
            .map_err(|error| HookError::Attach { interface: interface(), error })?;
        self.attached = Some(Attached { ifindex, diversion, is_up: false });
        Ok(())
    }

    fn follow_peer(&mut self, takes: Option<&[IpNet]>) {
        let Some(attached) = &mut self.attached else {
            if ifindex_of(&self.divert.interface).is_none() {
                self.log_state(DivertState::NoInterface, None);
            }
            return;
        };
        self.not_taken =
            takes.map_or(Vec::new(), |takes| rules::not_taken(&self.divert.prefixes, takes));
        let (state, reason) = match takes {
            None if self.peer.is_none() => (DivertState::PeerDown, Some(UNKNOWN.to_owned())),
            None => (DivertState::PeerDown, None),
            Some(_) if self.not_taken.is_empty() => (DivertState::Active, None),
            Some(_) => (DivertState::NotTaken, Some(rules::why_none(&self.not_taken))),
        };
        let is_up = state == DivertState::Active;
        if attached.is_up != is_up {
            match attached.diversion.set_up(is_up) {
                Ok(()) => attached.is_up = is_up,
                Err(error) => {
                    // Without the hook all goes its ordinary way; the next look makes another one.
                    self.attached = None;
                    self.log_state(DivertState::Failed, Some(error.to_string()));
                    return;
                }
            }
        }
        self.log_state(state, reason);
    }

    fn log_state(&mut self, state: DivertState, reason: Option<String>) {
        if (self.state, &self.reason) != (state, &reason) {
            let Divert { interface, peer, prefixes, .. } = &self.divert;
            let prefixes: Vec<_> = prefixes.iter().map(ToString::to_string).collect();
            let why = reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
            info!(
                "diversion from {interface} to {} by peer {peer}: {state}{why}",
                prefixes.join(", ")
            );
        }
        (self.state, self.reason) = (state, reason);
    }

    /// Why what is for a prefix of the table is not diverted.
    pub fn reason(&self, prefix: &IpNet) -> Option<String> {
        match self.state {
            DivertState::NotTaken => Some(rules::why_not(prefix, &self.not_taken)),
            _ => self.reason.clone(),
        }
    }

    /// Counters of diverted packets, by prefix of the table.
    pub fn read_counters(&self) -> Vec<RuleCounters> {
        let now =
            self.attached.as_ref().and_then(|attached| attached.diversion.read_counters().ok());
        self.counted_with(&now.unwrap_or_default())
    }

    fn counted_with(&self, now: &[(Rule, RuleCounters)]) -> Vec<RuleCounters> {
        let counted = |prefix: &IpNet| {
            let found = now.iter().find(|(rule, _)| rule.prefix == *prefix);
            found.map_or(RuleCounters::default(), |(_, counted)| *counted)
        };
        let prefixes = self.divert.prefixes.iter().zip(&self.past);
        prefixes.map(|(prefix, past)| *past + counted(prefix)).collect()
    }
}

fn ifindex_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}
