//! FIN, RST, and the end of a record.

use vsnoop_flow::{FromVm, hold::Verdict, segment, seq, types::*};

use crate::case::*;

fn fin(s: segment) -> segment {
    segment { tcp_flags: s.tcp_flags | FIN, ..s }
}

#[test]
fn a_fin_goes_in_sequence_and_is_acknowledged_by_the_vm_alone() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.pass(&fin(c.data(MSS, 10)));
        assert_eq!(c.f.high_seq, at(MSS + 11));
        assert_ne!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Drop);
        assert_eq!(c.f.next_seq, at(MSS));
        assert_eq!(c.acks(MSS + 11, WINDOW).0, FromVm::Pass);
        assert_eq!(c.f.next_seq, at(MSS + 11));
    }
}

#[test]
fn a_fin_beyond_the_vms_window_ends_no_record() {
    // Beyond the VM's window: it accepts nothing of it, and has acknowledged all that it was
    // handed.
    let mut c = FlowCase::new();
    c.acks(0, WINDOW);
    c.hear(&fin(c.data_of_vm(0, 0, 0)));
    let beyond = c.f.right_edge.diff(c.f.next_seq) as u32;
    c.pass(&fin(c.data(beyond, 10)));
    assert!(!c.has(FLOW_F_FIN_SENDER));
}

/// smoltcp accepts the data up to its window, and the FIN with it.
#[test]
fn a_fin_beyond_the_vms_window_is_taken_out_where_the_host_has_shown_more() {
    for is_early in [true, false] {
        let mut c = FlowCase::new();
        if is_early {
            c.early(&c.data(0, MSS));
            c.acks(MSS, WINDOW);
        }
        c.policy.run = port_run::PORT_PAUSED;
        c.f.high_seq = c.f.right_edge;
        let next = c.f.next_seq.diff(at(0)) as u32;
        let room = c.f.right_edge.diff(c.f.next_seq) as u32;
        c.f.adv_edge = seq { v: c.f.right_edge.v.wrapping_add(MSS) };
        let (verdict, out) = c.decide(&fin(c.data(next + room - 10, 20)));
        assert!(matches!(verdict, Verdict::Pass), "{verdict:?}");
        assert_eq!(out.events & EVENT_EARLY_FIN != 0, is_early);
        assert!(!c.has(FLOW_F_FIN_SENDER));
        let (_, out) = c.decide(&fin(c.data(next + room - 10, 10)));
        assert_eq!(out.events & EVENT_EARLY_FIN, 0, "the VM takes it");
    }
}

#[test]
fn a_fin_behind_a_hole_ends_the_record_when_the_vm_has_everything() {
    let mut c = FlowCase::new();
    c.hear(&fin(c.data_of_vm(0, 0, 0)));
    c.pass(&fin(c.data(MSS, 10)));
    let (_, out) = c.decide(&c.ack_of_sender(MSS + 11, 1));
    assert_eq!(out.events & EVENT_CLOSED, 0, "the hole is not filled");
    c.pass(&c.data(0, MSS));
    c.acks(MSS + 11, WINDOW);
    let (_, out) = c.decide(&c.ack_of_sender(MSS + 11, 1));
    assert_ne!(out.events & EVENT_CLOSED, 0);
}

#[test]
fn a_half_closed_flow_is_still_acknowledged_early() {
    for mut c in FlowCase::both() {
        // The VM has nothing more to say, the sender has.
        let (verdict, out) = c.hear(&fin(c.data_of_vm(0, 0, 0)));
        assert_eq!((verdict, out.events & EVENT_CLOSED), (FromVm::Pass, 0));
        c.pass(&c.ack_of_sender(0, 1));
        for i in 0..30 {
            let s = segment { ack: vm_at(1), ..c.data(i * MSS, MSS) };
            c.kept(&s);
            c.acks((i + 1) * MSS, WINDOW);
        }
        let out = c.acks(30 * MSS, WINDOW).1;
        assert_eq!(out.events & EVENT_CLOSED, 0);
    }
}

#[test]
fn a_record_goes_when_both_fins_and_every_byte_are_acknowledged() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.pass(&fin(c.data(MSS, 0)));
        // The VM's FIN acknowledges the sender's data, not yet its FIN.
        let s = segment { window: WINDOW, ..c.data_of_vm(0, 0, MSS) };
        let (verdict, out) = c.hear(&fin(s));
        assert_eq!((verdict, out.events & EVENT_CLOSED), (FromVm::Pass, 0));
        // The sender acknowledges the VM's FIN.
        let ack = c.ack_of_sender(MSS + 1, 1);
        assert_eq!(c.decide(&ack).1.events & EVENT_CLOSED, 0);
        let (verdict, out) = c.acks(MSS + 1, WINDOW);
        assert_eq!((verdict, out.events & EVENT_CLOSED), (FromVm::Pass, EVENT_CLOSED));
    }
}

#[test]
fn a_record_goes_with_the_senders_last_ack() {
    for mut c in FlowCase::both() {
        c.pass(&fin(c.data(0, 0)));
        c.hear(&fin(c.data_of_vm(0, 0, 1)));
        assert_ne!(c.decide(&c.ack_of_sender(1, 1)).1.events & EVENT_CLOSED, 0);
    }
}

#[test]
fn a_record_never_goes_while_bytes_are_outstanding() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 4 * MSS));
        c.pass(&fin(c.data(4 * MSS, 0)));
        c.hear(&fin(c.data_of_vm(0, 0, MSS)));
        let out = c.decide(&c.ack_of_sender(4 * MSS + 1, 1)).1;
        assert_eq!(out.events & EVENT_CLOSED, 0);
        for offset in [2 * MSS, 4 * MSS] {
            assert_eq!(c.acks(offset, WINDOW).1.events & EVENT_CLOSED, 0);
        }
        assert_ne!(c.acks(4 * MSS + 1, WINDOW).1.events & EVENT_CLOSED, 0);
    }
}

#[test]
fn a_reset_by_the_vm_ends_the_record() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.acks(MSS, WINDOW);
        let rst = segment { tcp_flags: RST, ..c.ack_of_vm(MSS, 0) };
        let (verdict, out) = c.hear(&rst);
        assert_eq!(verdict, FromVm::Pass);
        assert_ne!(out.events & EVENT_CLOSED, 0);
    }
}

#[test]
fn a_reset_by_the_vm_with_bytes_outstanding_leaves_a_record_in_reset() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        let rst = segment { tcp_flags: RST, ..c.ack_of_vm(0, 0) };
        for _ in 0..2 {
            let (verdict, out) = c.hear(&rst);
            assert_eq!(verdict, FromVm::Pass);
            assert_eq!(out.events & EVENT_CLOSED, 0, "the RST may get lost");
        }
        // A sender that missed the RST gets another.
        assert_eq!(c.decide(&c.data(MSS, MSS)).0, vsnoop_flow::hold::Verdict::Reset);
    }
}

#[test]
fn a_reset_by_the_vm_that_the_sender_ignores_ends_nothing() {
    for (sent, offset) in [(0, 1), (0, -1i32), (MSS, MSS as i32 + 1), (0, i32::MAX)] {
        for mut c in FlowCase::both() {
            c.early(&c.data(0, MSS));
            c.hear(&c.data_of_vm(0, sent, 0));
            let first = c.ack_of_vm(0, 0);
            let seq = seq { v: first.seq.v.wrapping_add(offset as u32) };
            let (verdict, out) = c.hear(&segment { tcp_flags: RST, seq, ..first });
            assert_eq!((verdict, out.events), (FromVm::Pass, 0));
            assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
            c.early(&c.data(MSS, MSS));
        }
    }
}

#[test]
fn an_exact_reset_by_the_sender_ends_early_acknowledgement_but_not_the_record() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        let rst = segment { tcp_flags: RST, ..c.data(MSS, 0) };
        assert_eq!(c.pass(&rst) & EVENT_CLOSED, 0, "bytes are outstanding");
        assert!(c.has(FLOW_F_CLOSED));
        c.pass(&c.data(MSS, MSS));
        assert!(!vsnoop_flow::is_own_syn(&c.f, &vm_syn(ACK)), "a new connection may begin");
    }
}

#[test]
fn a_reset_elsewhere_in_the_window_ends_nothing() {
    // The VM's RCV.NXT will be another when it gets the RST.
    for offset in [0, MSS - 1, MSS + 1, 2 * MSS] {
        for mut c in FlowCase::both() {
            c.early(&c.data(0, MSS));
            let rst = segment { tcp_flags: RST, ..c.data(offset, 0) };
            c.pass(&rst);
            assert!(!c.has(FLOW_F_CLOSED) && c.has(FLOW_F_CHALLENGE_DUE));
            c.early(&c.data(MSS, MSS));
        }
    }
}

/// The host has confirmed all bytes below the RST, so that it is as good at the VM: the sender may
/// be silent from now on.
#[test]
fn a_vm_that_missed_an_exact_reset_gets_another_from_the_host() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        c.pass(&segment { tcp_flags: RST, ..c.data(2 * MSS, 0) });
        for offset in [MSS, 2 * MSS] {
            let (verdict, out) = c.acks(offset, c.window_at(offset));
            assert_eq!((verdict, out.ack.seq), (FromVm::Reset, at(offset)));
        }
    }
}

#[test]
fn without_early_acknowledgement_the_sender_answers_for_its_reset() {
    let mut c = FlowCase::new();
    c.pass(&segment { tcp_flags: RST, ..c.data(0, 0) });
    assert_eq!(c.acks(0, WINDOW).0, FromVm::Pass);
}

/// The VM has bytes beyond, and drops the RST.
#[test]
fn a_reset_below_what_the_vm_was_handed_ends_nothing() {
    let mut c = FlowCase::new();
    c.policy.run = port_run::PORT_PAUSED;
    c.pass(&c.data(0, MSS));
    c.pass(&segment { tcp_flags: RST, ..c.data(0, 0) });
    assert!(!c.has(FLOW_F_CLOSED));
}
