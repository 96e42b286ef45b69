//! Connections whose engine has gone.

use vsnoop_flow::types::{HOLD_ABANDONED_S, flow, flow_key, flow_mode, hold};
use vsnoop_hold::View;

use crate::held::outstanding_bytes;

/// The same time as in the hooks: no engine runs.
pub const HOLD_ABANDONED_NS: u64 = HOLD_ABANDONED_S as u64 * 1_000_000_000;
/// If the VM has acknowledged nothing for this time, and no engine retransmits, its segments count
/// as lost (R2 of RFC 9293, section 3.8.3).
const LOST_NS: u64 = 100_000_000_000;

/// Connections whose held bytes no engine has handed over, or whose losses none has retransmitted,
/// for too long. `engine_ns`: the engine's last sign of life; `hold` reads a hold by its number;
/// both times are CLOCK_MONOTONIC.
pub fn abandoned(
    flows: &[(flow_key, flow)],
    engine_ns: u64,
    now_ns: u64,
    hold: impl Fn(u32) -> hold,
) -> Vec<(flow_key, flow)> {
    let silent_ns = now_ns.saturating_sub(engine_ns);
    if silent_ns < HOLD_ABANDONED_NS {
        return Vec::new();
    }
    let is_lost = |(_, flow): &&(flow_key, flow)| {
        let stands_ns = now_ns.saturating_sub(flow.progress_ns);
        is_held(flow, &hold) || outstanding_bytes(flow) > 0 && silent_ns.min(stands_ns) >= LOST_NS
    };
    flows.iter().filter(is_lost).copied().collect()
}

/// Has the flow bytes that the VM was not handed yet?
fn is_held(flow: &flow, hold: &impl Fn(u32) -> hold) -> bool {
    u32::from(flow.mode) == flow_mode::FLOW_HOLDING
        && flow.hold != 0
        && !View::new(&hold(flow.hold.into())).is_all_handed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vsnoop_flow::types::seq;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1000 * SECOND;

    /// A connection with 1000 unacknowledged bytes, whose VM has acknowledged nothing for
    /// `stands_ns`.
    fn behind(stands_ns: u64) -> flow {
        flow { next_seq: seq::new(1000), progress_ns: NOW - stands_ns, ..Default::default() }
    }

    /// The same with all of them held.
    fn holding() -> flow {
        flow { mode: flow_mode::FLOW_HOLDING as u8, hold: 1, ..behind(0) }
    }

    fn is_abandoned(flow: flow, engine_silent_ns: u64) -> bool {
        let kept = hold { tail: seq::new(1000), chunks: 1, used: 1, ..Default::default() };
        let flows = [(flow_key::default(), flow)];
        !abandoned(&flows, NOW - engine_silent_ns, NOW, |_| kept).is_empty()
    }

    #[test]
    fn held_bytes_wait_30_s_for_another_engine() {
        assert!(!is_abandoned(holding(), 30 * SECOND - 1));
        assert!(is_abandoned(holding(), 30 * SECOND));
    }

    #[test]
    fn a_vm_without_an_engine_has_100_s_to_acknowledge_something() {
        assert!(!is_abandoned(behind(500 * SECOND), 100 * SECOND - 1), "the engine is gone lately");
        assert!(!is_abandoned(behind(100 * SECOND - 1), 500 * SECOND), "the VM has acknowledged");
        assert!(is_abandoned(behind(100 * SECOND), 100 * SECOND));
        let idle = flow { next_seq: seq::new(0), ..behind(500 * SECOND) };
        assert!(!is_abandoned(idle, 500 * SECOND), "nothing is outstanding");
    }
}
