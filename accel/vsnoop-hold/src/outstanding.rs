//! How many bytes of a connection the VM has not got: acknowledged by the host alone, or held and
//! not even handed over.
//!
//! A flow's record has what the hooks know, and these learn of the engine's work only at the flow's
//! next packet. So the byte up to which the VM was handed everything is the higher of the record's
//! `high_seq` and the hold's `handed`.

use vsnoop_flow::types::{self, flow, flow_key, flow_mode, hold, seq};

use crate::rst_repeats::{is_reset, key_bytes};

/// Bytes that the host has acknowledged early and the VM has not; none once the connection has
/// ended or was reset.
pub fn outstanding_bytes(flow: &flow) -> u64 {
    let live = !is_reset(flow) && u32::from(flow.flags) & types::FLOW_F_CLOSED == 0;
    if live { flow.next_seq.diff(flow.vm_seq).max(0) as u64 } else { 0 }
}

/// Connections with [`outstanding_bytes`], and their sum.
pub fn outstanding(flows: &[(flow_key, flow)]) -> (u64, u64) {
    let behind = flows.iter().map(|(_, flow)| outstanding_bytes(flow)).filter(|bytes| *bytes > 0);
    behind.fold((0, 0), |(flows, total), bytes| (flows + 1, total + bytes))
}

/// The hold of this flow, if it has one. `read` reads a hold by its number.
pub fn hold_of(key: &flow_key, flow: &flow, read: impl FnOnce(u32) -> hold) -> Option<hold> {
    let hold = (flow.hold != 0).then(|| read(flow.hold.into()))?;
    (hold.used != 0 && key_bytes(&hold.key) == key_bytes(key)).then_some(hold)
}

/// Bytes that were acknowledged early and not handed to the VM. `hold`: the flow's.
pub fn held_bytes(flow: &flow, hold: Option<&hold>) -> u64 {
    if u32::from(flow.mode) != flow_mode::FLOW_HOLDING
        || u32::from(flow.flags) & types::FLOW_F_CLOSED != 0
    {
        return 0;
    }
    flow.next_seq.diff(handed(flow, hold)).max(0) as u64
}

/// Bytes that only this host has: held bytes, or all outstanding bytes if the VM has lost some and
/// the engine is retransmitting.
pub fn needed_bytes(flow: &flow, hold: Option<&hold>) -> u64 {
    let is_mending = hold.is_some_and(|hold| {
        let is_kept = hold.chunks > 0 && flow.vm_seq.diff(hold.tail) < 0;
        is_kept && (hold.duplicate_acks > 0 || hold.resends > 0)
    });
    if is_mending { outstanding_bytes(flow) } else { held_bytes(flow, hold) }
}

/// The VM was handed all bytes below; includes the sender's FIN.
pub fn handed(flow: &flow, hold: Option<&hold>) -> seq {
    match hold.map(|hold| hold.handed) {
        Some(handed) if handed.diff(flow.high_seq) > 0 => handed,
        _ => flow.high_seq,
    }
}

#[cfg(test)]
mod tests {
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
    fn held_is_what_neither_hooks_nor_engine_have_handed_over() {
        let flow = holding();
        assert_eq!(held_bytes(&flow, None), 1000);
        for (handed, held) in [(100, 1000), (50, 1000), (600, 500), (1100, 0), (1101, 0)] {
            let hold = hold { handed: seq::new(handed), ..Default::default() };
            assert_eq!(held_bytes(&flow, Some(&hold)), held, "handed {handed}");
        }
    }

    #[test]
    fn only_a_live_flow_that_holds_has_held_bytes() {
        for mode in [flow_mode::FLOW_ACTIVE, flow_mode::FLOW_BYPASS, flow_mode::FLOW_RESET] {
            assert_eq!(held_bytes(&flow { mode: mode as u8, ..holding() }, None), 0);
        }
        let closed = flow { flags: types::FLOW_F_CLOSED as u16, ..holding() };
        assert_eq!(held_bytes(&closed, None), 0);
    }
}
