//! The present state of a port's holds: what is held, how much memory it takes, and whether an
//! engine is alive.

use serde::Serialize;
use vsnoop_bpf::types::{self, HOLD_CHUNK, flow, flow_key};
use vsnoop_bpf::{Hold, HoldMaps, Port};
use vsnoop_hold::detach_resets::Ended;
use vsnoop_hold::outstanding;
use vsnoop_hold::outstanding_bytes;

use crate::error::Result;
use crate::system::clock::monotonic_ns;
use crate::units;

/// The hooks do not rely on an engine without a sign of life for this time (HOLD_STALE_NS in
/// flow/hold_state.h).
const STALE_NS: u64 = 1_000_000_000;

/// The holds of one port.
pub struct Holds {
    memory: Option<HoldMaps>,
    now_ns: u64,
}

/// The hold of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowHold {
    /// Bytes acknowledged early, but not handed to the VM yet.
    pub held_bytes: u64,
    /// Bytes acknowledged early, but not by the VM: the host has copies.
    pub kept_bytes: u64,
    /// For how long the oldest held byte has waited; null when nothing is held.
    pub oldest_ns: Option<u64>,
    /// Frames that the engine handed to the VM, retransmitted frames, and bytes of those.
    pub handovers: u32,
    pub resends: u32,
    pub resent_bytes: u64,
}

/// The hold of one port, summed over its present connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortHold {
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// Memory of its slabs, which are added and removed as needed.
    pub memory_bytes: u64,
    /// Connections with a hold.
    pub flows: u64,
    pub held_flows: u64,
    pub held_bytes: u64,
    pub oldest_ns: Option<u64>,
    pub handovers: u64,
    pub resends: u64,
    pub resent_bytes: u64,
    pub engine: EngineState,
    /// Time since the engine's last sign of life; null without any.
    pub engine_silent_ns: Option<u64>,
}

/// The engine, as the hooks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineState {
    Alive,
    /// It was alive before.
    Silent,
    Never,
}

impl Holds {
    pub fn open(port: &Port) -> Result<Self> {
        Ok(Self { memory: HoldMaps::open(port)?, now_ns: monotonic_ns()? })
    }

    /// For callers that must not fail: if the holds cannot be read, all bytes beyond the record's
    /// `high_seq` count as held.
    pub fn open_or_do_without(port: &Port) -> Self {
        Self::open(port).unwrap_or(Self { memory: None, now_ns: 0 })
    }

    /// The hold of this flow, if it has one.
    fn find_hold(&self, key: &flow_key, flow: &flow) -> Option<Hold> {
        outstanding::hold_of(key, flow, |number| self.read(number))
    }

    /// The hold with this number; a free one if the holds cannot be read.
    pub fn read(&self, number: u32) -> Hold {
        self.memory.as_ref().map(|memory| memory.read(number)).unwrap_or_default()
    }

    /// The hold of this flow; `None` if it has none.
    pub fn flow(&self, key: &flow_key, flow: &flow) -> Option<FlowHold> {
        self.find_hold(key, flow).map(|hold| describe(flow, &hold, self.now_ns))
    }

    /// Bytes that were acknowledged early and not handed to the VM.
    pub fn held_bytes(&self, key: &flow_key, flow: &flow) -> u64 {
        outstanding::held_bytes(flow, self.find_hold(key, flow).as_ref())
    }

    /// Bytes that only this host has.
    pub fn needed_bytes(&self, key: &flow_key, flow: &flow) -> u64 {
        outstanding::needed_bytes(flow, self.find_hold(key, flow).as_ref())
    }

    /// The port's hold; `None` when it was attached without.
    pub fn port(&self, port: &Port, flows: &[(flow_key, flow)]) -> Result<Option<PortHold>> {
        let (policy, state) = (port.policy()?, port.state()?);
        if policy.hold_chunks == 0 {
            return Ok(None);
        }
        let bytes = |chunks: u32| u64::from(chunks) * u64::from(HOLD_CHUNK);
        let engine_silent_ns =
            (state.engine_ns != 0).then(|| self.now_ns.saturating_sub(state.engine_ns));
        let mut sum = PortHold {
            size_bytes: bytes(policy.hold_chunks),
            // Exceeds a quota that was lowered, for a while.
            used_bytes: bytes(state.chunks_used),
            memory_bytes: u64::from(state.slabs) * size_of::<types::hold_slab>() as u64,
            flows: 0,
            held_flows: 0,
            held_bytes: 0,
            oldest_ns: None,
            handovers: 0,
            resends: 0,
            resent_bytes: 0,
            engine: engine(engine_silent_ns),
            engine_silent_ns,
        };
        for flow in flows.iter().filter_map(|(key, flow)| self.flow(key, flow)) {
            sum.add(&flow);
        }
        Ok(Some(sum))
    }
}

impl PortHold {
    fn add(&mut self, flow: &FlowHold) {
        self.flows += 1;
        self.held_flows += u64::from(flow.held_bytes > 0);
        self.held_bytes += flow.held_bytes;
        self.oldest_ns = self.oldest_ns.max(flow.oldest_ns);
        self.handovers += u64::from(flow.handovers);
        self.resends += u64::from(flow.resends);
        self.resent_bytes += flow.resent_bytes;
    }

    /// For example "not heard of for 12.3 s".
    pub fn engine_text(&self) -> String {
        match (self.engine, self.engine_silent_ns) {
            (EngineState::Alive, _) => "alive".into(),
            (EngineState::Silent, Some(ns)) => format!("not heard of for {}", units::duration(ns)),
            (EngineState::Silent | EngineState::Never, _) => "never heard of".into(),
        }
    }
}

/// Bytes that were acknowledged early and have not reached the VM's TCP yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    pub flows: u64,
    pub bytes: u64,
    /// Those of them with bytes that the VM has not been handed.
    pub held_flows: u64,
    pub held_bytes: u64,
}

impl Outstanding {
    pub fn count_outstanding(port: &Port, holds: &Holds) -> Result<Self> {
        let mut left = Self::default();
        for (key, flow) in &port.flows()? {
            let (bytes, held_bytes) = (outstanding_bytes(flow), holds.held_bytes(key, flow));
            left.flows += u64::from(bytes > 0);
            left.bytes += bytes;
            left.held_flows += u64::from(held_bytes > 0);
            left.held_bytes += held_bytes;
        }
        Ok(left)
    }

    /// Without the connections that were reset since.
    pub fn without(self, ended: Ended) -> Self {
        Self {
            flows: self.flows.saturating_sub(ended.flows),
            bytes: self.bytes.saturating_sub(ended.outstanding_bytes),
            held_flows: 0,
            held_bytes: 0,
        }
    }

    pub fn describe_outstanding(self) -> String {
        amount(self.bytes, self.flows)
    }

    pub fn held_text(self) -> String {
        amount(self.held_bytes, self.held_flows)
    }
}

/// For example "391 KiB of 2 connections".
pub fn amount(bytes: u64, flows: u64) -> String {
    format!("{} of {}", units::bytes(bytes), units::plural(flows, "connection"))
}

/// Has the engine shown a sign of life lately? `engine_ns`: its last one, 0 for none. `engine_ns`
/// and `now_ns` are CLOCK_MONOTONIC.
pub fn engine_is_alive(engine_ns: u64, now_ns: u64) -> bool {
    engine_ns != 0 && engine(Some(now_ns.saturating_sub(engine_ns))) == EngineState::Alive
}

fn engine(silent_ns: Option<u64>) -> EngineState {
    match silent_ns {
        None => EngineState::Never,
        Some(ns) if ns < STALE_NS => EngineState::Alive,
        Some(_) => EngineState::Silent,
    }
}

fn describe(flow: &flow, hold: &Hold, now_ns: u64) -> FlowHold {
    let held_bytes = outstanding::held_bytes(flow, Some(hold));
    FlowHold {
        held_bytes,
        kept_bytes: outstanding_bytes(flow),
        oldest_ns: (held_bytes > 0 && hold.since_ns != 0)
            .then(|| now_ns.saturating_sub(hold.since_ns)),
        handovers: hold.handovers,
        resends: hold.resends,
        resent_bytes: hold.resent_bytes,
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_bpf::types::{flow_mode, seq};

    use super::*;

    fn holding() -> flow {
        flow {
            mode: flow_mode::FLOW_HOLDING as u8,
            vm_seq: seq::new(u32::MAX - 99),
            high_seq: seq::new(100),
            next_seq: seq::new(1100),
            ..Default::default()
        }
    }

    #[test]
    fn the_oldest_byte_has_an_age_while_something_is_held() {
        let flow = holding();
        let hold =
            Hold { handed: seq::new(100), since_ns: 400, handovers: 3, ..Default::default() };
        let shown = describe(&flow, &hold, 1000);
        assert_eq!((shown.held_bytes, shown.kept_bytes, shown.oldest_ns), (1000, 1200, Some(600)));
        assert_eq!(shown.handovers, 3);
        let done = Hold { handed: seq::new(1100), ..hold };
        assert_eq!(describe(&flow, &done, 1000).oldest_ns, None);
    }

    #[test]
    fn an_engine_is_stale_after_a_second() {
        assert_eq!(engine(None), EngineState::Never);
        assert_eq!(engine(Some(STALE_NS - 1)), EngineState::Alive);
        assert_eq!(engine(Some(STALE_NS)), EngineState::Silent);
        assert!(engine_is_alive(1, STALE_NS) && !engine_is_alive(1, STALE_NS + 1));
        assert!(!engine_is_alive(0, 1));
    }
}
