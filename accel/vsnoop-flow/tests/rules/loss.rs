//! Loss inside the guest: which ACKs wake the engine; and a flow that was reset.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

/// Four segments acknowledged early; the VM has acknowledged the first.
fn waiting(mut c: FlowCase) -> FlowCase {
    for i in 0..4 {
        c.early(&c.data(i * MSS, MSS));
    }
    c.acks(MSS, c.window_at(MSS));
    c
}

/// The VM sends a duplicate ACK; asserts whether it wakes the engine, and that the sender gets
/// nothing.
#[track_caller]
fn duplicate_ack(c: &mut FlowCase, s: &segment, is_loss: bool) {
    let before = c.h.duplicate_acks;
    let (verdict, out) = c.hear(s);
    assert_eq!(verdict, FromVm::Drop);
    assert_eq!(c.h.duplicate_acks != before, is_loss, "{s:?}");
    assert_eq!(out.events & EVENT_WAKE != 0, is_loss);
    assert_ne!(c.mode(), flow_mode::FLOW_RESET);
}

#[test]
fn a_reported_loss_wakes_the_engine() {
    for c in FlowCase::both() {
        let mut c = waiting(c);
        for _ in 0..20 {
            let s = c.sack_of_vm(MSS, 4 * MSS);
            duplicate_ack(&mut c, &s, true);
        }
    }
}

#[test]
fn an_engine_that_recovers_is_woken_by_each_ack_that_falls_short() {
    for c in FlowCase::both() {
        let mut c = waiting(c);
        let wakes = |c: &mut FlowCase, offset| {
            let (_, out) = c.acks(offset, c.window_at(offset));
            out.events & EVENT_WAKE != 0
        };
        assert!(!wakes(&mut c, MSS + 1), "nothing was sent again");
        c.h.wants_acks = 1;
        assert!(wakes(&mut c, 2 * MSS));
        // A segment of a VM that has had time proves what it lacks.
        assert!(wakes(&mut c, 2 * MSS));
        assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
    }
}

#[test]
fn without_sack_a_duplicate_ack_is_a_loss_report() {
    let mut c = waiting(FlowCase::plain());
    for _ in 0..20 {
        let s = c.ack_of_vm(MSS, c.window_at(MSS));
        duplicate_ack(&mut c, &s, true);
    }
}

#[test]
fn with_sack_a_duplicate_ack_without_blocks_is_no_loss_report() {
    for c in FlowCase::both() {
        let mut c = waiting(c);
        let plain = c.ack_of_vm(MSS, c.window_at(MSS));
        duplicate_ack(&mut c, &plain, false);
        // Nor does the report of a duplicate (RFC 2883).
        let s = c.sack_of_vm(MSS, MSS / 2);
        duplicate_ack(&mut c, &s, false);
    }
}

#[test]
fn a_challenge_ack_is_no_report_of_a_loss() {
    let mut c = waiting(FlowCase::plain());
    c.pass(&segment { tcp_flags: SYN, ..c.data(9, 0) });
    assert_eq!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Pass);
    assert_eq!(c.h.duplicate_acks, 0);
}

#[test]
fn a_probe_of_the_vm_is_no_report_of_a_loss() {
    let mut c = FlowCase::plain();
    c.hear(&c.data_of_vm(0, 50, 0));
    let mut c = waiting(c);
    let probe = segment { seq: vm_at(49), ..c.ack_of_vm(MSS, c.window_at(MSS)) };
    assert_eq!(c.hear(&probe).0, FromVm::Rewrite);
    assert_eq!(c.h.duplicate_acks, 0);
}

#[test]
fn a_window_update_is_no_report_of_a_loss() {
    let mut c = waiting(FlowCase::plain());
    for i in 1..5 {
        let s = c.ack_of_vm(MSS, c.window_at(MSS) + i);
        duplicate_ack(&mut c, &s, false);
    }
}

/// It had no memory for what it was handed (Linux then shows no window), and has some again.
#[test]
fn a_window_that_was_closed_below_what_was_handed_and_opens_reports_a_loss() {
    for c in FlowCase::both().into_iter().chain([FlowCase::plain()]) {
        let mut c = waiting(c);
        assert_eq!(c.acks(MSS, 0).1.events & EVENT_WAKE, 0);
        for dropped in 1..3 {
            let (_, out) = c.acks(MSS, WINDOW);
            assert_eq!((c.h.dropped, out.events & EVENT_WAKE), (dropped, EVENT_WAKE));
            c.acks(MSS, 0);
        }
        // With an ACK of all that it was handed it has lost nothing.
        c.acks(4 * MSS, 0);
        c.acks(4 * MSS, WINDOW);
        assert_eq!(c.h.dropped, 2);
    }
}

#[test]
fn data_of_the_vm_is_no_report_of_a_loss() {
    for c in FlowCase::both() {
        let mut c = waiting(c);
        let s = c.data_of_vm(0, 10, MSS);
        let s = segment { bits: s.bits | SEG_SACK as u16, sack_end: at(4 * MSS), ..s };
        assert_eq!(c.hear(&s).0, FromVm::Rewrite);
        assert_eq!(c.h.duplicate_acks, 0);
    }
}

#[test]
fn duplicate_acks_of_next_seq_pass_to_the_sender() {
    for c in FlowCase::both() {
        let mut c = c.without_hold();
        c.pass(&c.data(0, MSS));
        c.acks(MSS, WINDOW);
        for i in 2..8 {
            c.pass(&c.data(i * MSS, MSS));
            assert_eq!(c.hear(&c.sack_of_vm(MSS, (i + 1) * MSS)).0, FromVm::Pass);
        }
    }
}

/// The VM has reset the connection while bytes were outstanding.
fn reset() -> FlowCase {
    let mut c = waiting(FlowCase::accepted());
    let rst = segment { tcp_flags: RST, ..c.ack_of_vm(MSS, 0) };
    assert_eq!(c.hear(&rst).0, FromVm::Pass);
    assert_eq!((c.mode(), c.f.retired), (flow_mode::FLOW_RESET, 3 * MSS));
    c
}

#[test]
fn a_reset_flow_answers_both_ends_with_rst() {
    let mut c = reset();
    let (verdict, out) = c.decide(&c.data(4 * MSS, 10));
    assert_eq!(verdict, Verdict::Reset);
    assert_eq!(out.ack.seq, c.f.snd_nxt, "the ACK of the segment: exact for the sender");
    let (verdict, out) = c.hear(&c.data_of_vm(0, 10, MSS));
    assert_eq!(verdict, FromVm::Reset);
    assert_eq!(out.ack.seq, at(MSS), "exact for the VM");
    // A keep-alive probe of an idle sender too.
    assert_eq!(c.decide(&c.data(4 * MSS - 1, 0)).0, Verdict::Reset);
}

#[test]
fn a_reset_flow_passes_syns_and_resets() {
    let mut c = reset();
    for flags in [RST, RST | ACK, SYN] {
        let s = segment { tcp_flags: flags, ..c.data(4 * MSS, 0) };
        assert_eq!(c.decide(&s).0, Verdict::Pass);
    }
    assert!(!vsnoop_flow::is_own_syn(&c.f, &vm_syn(ACK)), "a new connection may begin");
    let rst = segment { tcp_flags: RST, ..c.ack_of_vm(MSS, 0) };
    assert_eq!(c.hear(&rst).0, FromVm::Pass);
}
