//! Expiry of flow records.
//!
//! A record never expires while the VM has not acknowledged all that the host has acknowledged
//! early, unless the connection was reset: only the record still covers those bytes.

use crate::types::{self, flow, flow_mode};

const SECOND_NS: u64 = 1_000_000_000;

/// Ended: late segments of both ends have arrived by then.
const CLOSED_NS: u64 = 10 * SECOND_NS;
/// Reset: both ends have retransmitted, and got a RST, by then.
const RESET_NS: u64 = 60 * SECOND_NS;
/// Set up in mid-flow, and the VM has not acknowledged data that the record saw: what the record
/// says its next packet says, too. A late ACK of a connection that has ended makes such a record.
const UNPROVEN_NS: u64 = 10 * SECOND_NS;
/// Both ends have sent FIN, but the last ACK was not seen; longer than any TIME-WAIT.
const CLOSING_NS: u64 = 240 * SECOND_NS;
/// Idle: if the connection goes on, its next packets create a record again.
const IDLE_NS: u64 = 2 * 3600 * SECOND_NS;
/// Idle, in a crowded table.
const IDLE_CROWDED_NS: u64 = 5 * 60 * SECOND_NS;

/// Has the record expired? `crowded`: more than 90 % of the table is used.
pub fn is_due(flow: &flow, now_ns: u64, crowded: bool) -> bool {
    let idle_ns = now_ns.saturating_sub(flow.last_ns);
    let flags = u32::from(flow.flags);
    if u32::from(flow.mode) == flow_mode::FLOW_RESET {
        return idle_ns >= RESET_NS;
    }
    if flags & types::FLOW_F_CLOSED != 0 {
        return idle_ns >= CLOSED_NS;
    }
    if flow.next_seq.diff(flow.vm_seq) > 0 {
        return false;
    }
    const UNPROVEN: u32 = types::FLOW_F_MID_FLOW | types::FLOW_F_UNPROVEN;
    if flags & UNPROVEN == UNPROVEN && idle_ns >= UNPROVEN_NS {
        return true;
    }
    const BOTH: u32 = types::FLOW_F_FIN_SENDER | types::FLOW_F_FIN_VM;
    if flags & BOTH == BOTH && idle_ns >= CLOSING_NS {
        return true;
    }
    idle_ns >= if crowded { IDLE_CROWDED_NS } else { IDLE_NS }
}

#[cfg(test)]
mod tests {
    use crate::types::seq;

    use super::*;

    const NOW: u64 = 100_000 * SECOND_NS;

    fn idle_for(idle_ns: u64) -> flow {
        flow { last_ns: NOW - idle_ns, ..Default::default() }
    }

    #[test]
    fn an_idle_connection_is_kept_for_hours_and_in_a_crowd_for_minutes() {
        assert!(!is_due(&idle_for(IDLE_NS - 1), NOW, false));
        assert!(is_due(&idle_for(IDLE_NS), NOW, false));
        assert!(!is_due(&idle_for(IDLE_CROWDED_NS - 1), NOW, true));
        assert!(is_due(&idle_for(IDLE_CROWDED_NS), NOW, true));
    }

    #[test]
    fn what_the_vm_has_not_acknowledged_is_never_forgotten() {
        let behind = flow { next_seq: seq::new(1), vm_seq: seq::new(0), ..idle_for(IDLE_NS * 2) };
        assert!(!is_due(&behind, NOW, true));
        let reset = flow { mode: flow_mode::FLOW_RESET as u8, ..behind };
        assert!(is_due(&reset, NOW, false));
    }

    #[test]
    fn an_ended_connection_goes_soon() {
        let closed = flow { flags: types::FLOW_F_CLOSED as u16, ..idle_for(CLOSED_NS) };
        assert!(is_due(&closed, NOW, false));
        assert!(!is_due(&flow { last_ns: NOW - CLOSED_NS + 1, ..closed }, NOW, false));
    }

    #[test]
    fn a_late_packet_of_an_ended_connection_leaves_no_record() {
        let unproven = types::FLOW_F_MID_FLOW | types::FLOW_F_UNPROVEN;
        let late = flow { flags: unproven as u16, ..idle_for(UNPROVEN_NS) };
        assert!(is_due(&late, NOW, false));
        assert!(!is_due(&flow { last_ns: NOW - UNPROVEN_NS + 1, ..late }, NOW, false));
        let proven = flow { flags: types::FLOW_F_MID_FLOW as u16, ..late };
        assert!(!is_due(&proven, NOW, false));
        let opened = flow { flags: types::FLOW_F_UNPROVEN as u16, ..late };
        assert!(!is_due(&opened, NOW, false), "the VM's handshake is not seen again");
    }

    #[test]
    fn a_half_closed_connection_lives_on() {
        let half = flow { flags: types::FLOW_F_FIN_SENDER as u16, ..idle_for(CLOSING_NS) };
        assert!(!is_due(&half, NOW, false));
        let both = types::FLOW_F_FIN_SENDER | types::FLOW_F_FIN_VM;
        assert!(is_due(&flow { flags: both as u16, ..half }, NOW, false));
    }
}
