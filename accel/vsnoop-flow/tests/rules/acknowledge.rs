//! Which segments are acknowledged early.

use vsnoop_flow::hold::{Kept, Verdict};
use vsnoop_flow::{FromVm, types::*};

use crate::case::*;

#[test]
fn in_order_data_is_acknowledged_at_once() {
    for mut c in FlowCase::both() {
        for i in 0..16 {
            let ack = c.early(&c.data(i * MSS, MSS)).ack;
            assert_eq!(ack.ack, at((i + 1) * MSS));
            assert_eq!(ack.seq, c.f.snd_nxt);
        }
        assert_eq!(c.f.next_seq, at(16 * MSS));
        assert_eq!(c.f.vm_seq, at(0));
        assert_eq!((c.f.early_acks, c.f.early_bytes), (16, u64::from(16 * MSS)));
    }
}

#[test]
fn a_super_packet_is_acknowledged_as_one() {
    for mut c in FlowCase::both() {
        let out = c.early(&c.data(0, 40 * MSS));
        assert_eq!(out.ack.ack, at(40 * MSS));
        assert_eq!(u32::from(c.f.mss), MSS);
    }
}

#[test]
fn without_a_copy_nothing_is_acknowledged() {
    for c in FlowCase::both() {
        let mut c = c.without_hold();
        assert_ne!(c.pass(&c.data(0, MSS)) & EVENT_OFFLINE_NO_BUF, 0);
        assert_eq!((c.mode(), c.f.high_seq), (flow_mode::FLOW_NO_BUF, at(MSS)));
        c.pass(&c.data(MSS, MSS));
        // Memory is available again; the VM must acknowledge data that passed without a copy.
        c.begin_hold();
        c.pass(&c.data(0, MSS));
        c.pass(&c.data(2 * MSS, MSS));
        c.acks(2 * MSS, WINDOW);
        assert_eq!(c.mode(), flow_mode::FLOW_NO_BUF);
        c.acks(3 * MSS, WINDOW);
        assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
        c.early(&c.data(3 * MSS, MSS));
    }
}

#[test]
fn data_after_a_hole_is_left_to_the_vm_where_no_copies_are_kept() {
    for c in FlowCase::both() {
        let mut c = c.without_hold();
        let events = c.pass(&c.data(MSS, MSS));
        assert_ne!(events & EVENT_OFFLINE_SEQ, 0);
        assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
    }
}

#[test]
fn filled_hole_is_not_acknowledged_before_the_vm() {
    for c in FlowCase::both() {
        let mut c = c.without_hold();
        c.pass(&c.data(MSS, MSS));
        c.pass(&c.data(2 * MSS, MSS));
        c.pass(&c.data(0, MSS));
        assert_eq!(c.f.next_seq, at(0));
        // The VM has filled the hole, but not reached the highest byte seen.
        c.acks(2 * MSS, WINDOW);
        c.pass(&c.data(2 * MSS, MSS));
        let (verdict, _) = c.acks(3 * MSS, WINDOW);
        assert_eq!(verdict, FromVm::Pass);
        c.begin_hold();
        c.early(&c.data(3 * MSS, MSS));
    }
}

#[test]
fn a_hole_is_not_forgotten_after_idle_time() {
    for c in FlowCase::both() {
        let mut c = c.without_hold();
        for i in 1..4 {
            c.pass(&c.data(i * MSS, MSS));
        }
        // The sender's time-out has backed off; the VM is frozen.
        c.now += 3_000 * MS;
        c.pass(&c.data(0, MSS));
        // The VM runs again and answers the segments in its ring, in order.
        for i in 1..4 {
            let (verdict, _) = c.hear(&c.sack_of_vm(0, (i + 1) * MSS));
            assert_eq!(verdict, FromVm::Pass);
        }
        assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
    }
}

#[test]
fn syn_fin_rst_and_urg_are_left_to_the_vm() {
    for flag in [SYN, FIN, RST, URG] {
        for mut c in FlowCase::both() {
            let mut s = c.data(0, MSS);
            s.tcp_flags |= flag;
            c.pass(&s);
            assert_eq!(c.f.early_acks, 0, "flag {flag:#x}");
        }
    }
}

#[test]
fn a_segment_without_ack_is_left_to_the_vm() {
    for mut c in FlowCase::both() {
        let mut s = c.data(0, MSS);
        s.tcp_flags = PSH;
        c.pass(&s);
        assert_eq!(c.f.high_seq, at(0));
    }
}

#[test]
fn a_foreign_option_puts_the_flow_in_bypass_for_good() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        let mut s = c.data(MSS, MSS);
        s.bits |= SEG_FOREIGN as u16;
        assert_ne!(c.pass(&s) & EVENT_BYPASS, 0);
        c.acks(2 * MSS, WINDOW);
        c.pass(&c.data(2 * MSS, MSS));
        assert_eq!(c.mode(), flow_mode::FLOW_BYPASS);
    }
}

#[test]
fn a_foreign_option_of_the_vm_puts_the_flow_in_bypass() {
    for mut c in FlowCase::both() {
        let mut s = c.ack_of_vm(0, WINDOW);
        s.bits |= SEG_FOREIGN as u16;
        c.hear(&s);
        c.pass(&c.data(0, MSS));
        assert_eq!(c.mode(), flow_mode::FLOW_BYPASS);
    }
}

#[test]
fn in_bypass_acknowledged_bytes_are_still_honoured() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        let mut s = c.data(2 * MSS, MSS);
        s.bits |= SEG_FOREIGN as u16;
        c.pass(&s);
        let (verdict, out) = c.hear(&c.data_of_vm(0, 100, MSS));
        assert_eq!(verdict, FromVm::Rewrite);
        assert_eq!(out.ack.ack, at(2 * MSS));
    }
}

#[test]
fn an_ack_of_what_the_vm_never_sent_is_left_to_the_vm() {
    for mut c in FlowCase::both() {
        let mut s = c.data(0, MSS);
        s.ack = vm_at(1);
        c.pass(&s);
        assert!(c.has(FLOW_F_CHALLENGE_DUE));
    }
}

#[test]
fn a_segment_with_an_old_ack_is_left_to_the_vm() {
    for mut c in FlowCase::both() {
        c.hear(&c.data_of_vm(0, 500, 0));
        c.pass(&c.ack_of_sender(0, 500));
        let mut s = c.data(0, MSS);
        s.ack = vm_at(499);
        c.pass(&s);
    }
}

#[test]
fn a_paused_port_gives_no_new_early_acks_but_honours_those_given() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        c.policy.run = port_run::PORT_PAUSED;
        c.pass(&c.data(2 * MSS, MSS));
        assert_eq!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Drop);
        assert_eq!(c.decide(&c.data(MSS, MSS)).0, Verdict::Reack);
        assert_eq!(c.acks(3 * MSS, WINDOW).0, FromVm::Pass);
        c.policy.run = port_run::PORT_ACCELERATE;
        c.early(&c.data(3 * MSS, MSS));
    }
}

#[test]
fn a_pause_between_decision_and_hand_over_stops_the_early_ack() {
    for mut c in FlowCase::both() {
        let s = c.data(0, MSS);
        assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
        c.policy.run = port_run::PORT_PAUSED;
        assert_eq!(c.after_copy(&s, true, true).0, Kept::Drop, "the VM has it");
        assert_eq!(c.f.next_seq, at(0));
        assert_eq!(c.f.high_seq, at(MSS));
    }
}

#[test]
fn an_observed_port_changes_no_packet() {
    for mut c in FlowCase::both() {
        c.policy.run = port_run::PORT_OBSERVE;
        for i in 0..5 {
            c.pass(&c.data(i * MSS, MSS));
        }
        for i in 1..5 {
            assert_eq!(c.acks(i * MSS, WINDOW).0, FromVm::Pass);
        }
        assert_eq!(c.hear(&c.data_of_vm(0, 100, 5 * MSS)).0, FromVm::Pass);
        assert_eq!(c.f.early_acks + c.f.suppressed + c.f.rewritten, 0);
    }
}

#[test]
fn a_segment_that_the_vm_acknowledges_during_the_copy_is_not_acknowledged_again() {
    for mut c in FlowCase::both() {
        let s = c.data(0, MSS);
        assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
        c.hear_only(&c.ack_of_vm(MSS, WINDOW));
        assert_eq!(c.after_copy(&s, true, true).0, Kept::Drop);
        assert_eq!((c.f.next_seq, c.f.early_acks), (at(MSS), 0));
    }
}
