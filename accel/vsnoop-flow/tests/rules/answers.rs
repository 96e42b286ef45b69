//! The VM's own ACKs: which pass, are dropped, or are rewritten; and the host's answers for the VM.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

#[test]
fn ack_of_exactly_next_seq_passes() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 3 * MSS));
        assert_eq!(c.acks(3 * MSS, WINDOW).0, FromVm::Pass);
        assert_eq!(c.f.vm_seq, at(3 * MSS));
    }
}

#[test]
fn an_ack_beyond_next_seq_passes() {
    for c in FlowCase::both() {
        let mut c = c.without_hold();
        c.pass(&c.data(MSS, MSS));
        c.pass(&c.data(0, MSS));
        assert_eq!(c.acks(2 * MSS, WINDOW).0, FromVm::Pass);
        assert_eq!(c.f.next_seq, at(2 * MSS));
    }
}

#[test]
fn an_ack_below_next_seq_is_superfluous() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 3 * MSS));
        assert_eq!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Drop);
        assert_eq!(c.f.vm_seq, at(MSS), "but it is learnt from");
        assert_eq!(c.f.suppressed, 1);
    }
}

#[test]
fn data_of_the_vm_always_passes_with_next_seq_and_the_window_from_the_right_edge() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 3 * MSS));
        let (verdict, out) = c.hear(&c.data_of_vm(0, 100, MSS));
        assert_eq!(verdict, FromVm::Rewrite);
        assert_eq!(out.ack.ack, at(3 * MSS));
        assert!((FULL as i32 - c.edge(&out)).abs() < 1 << SCALE);
        assert_eq!(c.f.snd_nxt, vm_at(100));
    }
}

#[test]
fn early_acks_carry_the_seq_that_the_vm_sends_next() {
    for mut c in FlowCase::both() {
        c.hear(&c.data_of_vm(0, 700, 0));
        let ack = c.early(&c.data(0, MSS)).ack;
        assert_eq!(ack.seq, vm_at(700));
        // A retransmission of the VM does not take it back.
        c.hear(&c.data_of_vm(0, 100, 0));
        assert_eq!(c.early(&c.data(MSS, MSS)).ack.seq, vm_at(700));
    }
}

#[test]
fn retransmission_is_reacked_by_the_host() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 3 * MSS));
        let (verdict, out) = c.decide(&c.data(MSS, MSS));
        assert_eq!(verdict, Verdict::Reack);
        assert_eq!(out.ack.ack, at(3 * MSS));
        assert_eq!(c.f.reacked, 1);
        // Partly acknowledged by the VM already: still on its way.
        c.acks(MSS / 2, c.window_at(MSS / 2));
        assert_eq!(c.decide(&c.data(0, MSS)).0, Verdict::Reack);
    }
}

#[test]
fn a_retransmission_below_vm_seq_goes_to_the_vm() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 3 * MSS));
        c.acks(MSS, WINDOW);
        c.pass(&c.data(0, MSS));
        // And its answer passes, although bytes are outstanding.
        let (verdict, out) = c.acks(MSS, c.window_at(MSS));
        assert_eq!(verdict, FromVm::Rewrite);
        assert_eq!(out.ack.ack, at(3 * MSS));
    }
}

#[test]
fn a_retransmission_with_new_data_behind_it_goes_to_the_vm() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.pass(&c.data(0, 2 * MSS));
        assert_eq!(c.f.next_seq, at(MSS));
        c.acks(2 * MSS, WINDOW);
        c.early(&c.data(2 * MSS, MSS));
    }
}

#[test]
fn a_retransmission_with_flags_goes_to_the_vm() {
    for flag in [URG, FIN] {
        for mut c in FlowCase::both() {
            c.early(&c.data(0, 2 * MSS));
            let mut s = c.data(0, MSS);
            s.tcp_flags |= flag;
            c.pass(&s);
        }
    }
}

#[test]
fn the_reply_to_a_keep_alive_is_not_suppressed() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        c.pass(&segment { tcp_flags: ACK | URG, ..c.data(2 * MSS, 1) });
        // A keep-alive probe, one byte below the sender's SND.NXT: the host cannot know the VM's
        // state.
        c.pass(&c.data(2 * MSS - 1, 0));
        assert_eq!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Rewrite);
        assert_eq!(c.acks(MSS + 1, c.window_at(MSS + 1)).0, FromVm::Drop);
    }
}

#[test]
fn the_reply_to_a_window_probe_passes() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, FULL));
        c.acks(FULL, 0);
        // With a byte of data, beyond the window.
        c.pass(&c.data(FULL, 1));
        assert_eq!(c.f.high_seq, at(FULL), "the VM does not take it");
        assert_eq!(c.acks(FULL, 0).0, FromVm::Pass);
        assert_eq!(c.acks(FULL, WINDOW).0, FromVm::Pass);
        c.early(&c.data(FULL, MSS));
    }
}

#[test]
fn a_window_update_passes_at_once() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, FULL));
        let (verdict, out) = c.acks(MSS, 1_000);
        assert_eq!(verdict, FromVm::Rewrite);
        assert_eq!(out.ack.ack, at(FULL));
        assert_eq!(u32::from(out.ack.window), (MSS + 128_000 - FULL) >> SCALE);
        // A little more is not worth an ACK.
        assert_eq!(c.acks(2 * MSS, 1_000).0, FromVm::Drop);
    }
}

#[test]
fn challenge_ack_is_never_rewritten() {
    let provocations: [fn(&FlowCase) -> segment; 3] = [
        |c| segment { tcp_flags: RST, ..c.data(5 * MSS, 0) },
        |c| segment { tcp_flags: SYN, ..c.data(9, 0) },
        |c| segment { ack: vm_at(9), ..c.data(2 * MSS, 0) },
    ];
    for provoke in provocations {
        for mut c in FlowCase::both() {
            c.early(&c.data(0, 2 * MSS));
            c.pass(&provoke(&c));
            assert_eq!(c.acks(0, WINDOW).0, FromVm::Pass);
            assert_eq!(c.acks(0, WINDOW).0, FromVm::Drop, "it was but one");
        }
    }
}

#[test]
fn challenge_ack_that_also_acknowledges_is_never_rewritten() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        c.pass(&segment { tcp_flags: SYN, ..c.data(9, 0) });
        // The VM's delayed ACK goes out with it.
        assert_eq!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Pass);
        // Or it was an ACK on its way already, and this is the challenge.
        assert_eq!(c.acks(MSS, c.window_at(MSS)).0, FromVm::Pass);
        assert_eq!(c.f.vm_seq, at(MSS));
    }
}

#[test]
fn another_ack_does_not_end_the_wait_for_a_challenge_ack() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.pass(&segment { tcp_flags: SYN, ..c.data(9, 0) });
        c.acks(MSS, WINDOW);
        assert!(c.has(FLOW_F_CHALLENGE_DUE));
        c.acks(MSS, WINDOW);
        assert!(!c.has(FLOW_F_CHALLENGE_DUE));
    }
}

#[test]
fn challenge_ack_does_not_take_back_the_window_that_the_hold_gave() {
    for c in FlowCase::both() {
        let mut c = c.unbounded();
        c.early(&c.data(0, 2 * MSS));
        let shown = c.f.adv_edge;
        assert!(shown.diff(c.f.right_edge) > 0, "the hold gives more than the VM");
        c.pass(&segment { tcp_flags: SYN, ..c.data(9, 0) });
        // With a byte outstanding, and with none.
        for offset in [MSS, 2 * MSS] {
            let (verdict, out) = c.acks(offset, WINDOW);
            assert_eq!(verdict, FromVm::Rewrite);
            assert_eq!(out.ack.ack, at(offset), "the ACK itself is the VM's");
            let edge = at(offset).add(u32::from(out.ack.window) << SCALE);
            assert!(edge.diff(shown) > -(1 << SCALE), "{edge:?} is before {shown:?}");
        }
    }
}

#[test]
fn an_old_or_implausible_ack_changes_no_state() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        c.acks(2 * MSS, WINDOW);
        let before = c.f;
        assert_eq!(c.acks(MSS, 1).0, FromVm::Pass);
        let mut wild = c.ack_of_vm(0, 1);
        wild.ack = at(2 * MSS + (1 << 30) + 1);
        assert_eq!(c.hear(&wild).0, FromVm::Pass);
        assert_eq!(c.f, before);
    }
}

#[test]
fn the_vms_answers_are_timed() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        c.now += 30 * MS;
        let (_, out) = c.acks(MSS, WINDOW);
        assert_eq!(out.events & EVENT_SAMPLE, EVENT_SAMPLE);
        assert_eq!(out.events & EVENT_SAMPLE_EARLY, EVENT_SAMPLE_EARLY);
        assert_eq!(out.sample_ns, 30 * MS);
        c.policy.run = port_run::PORT_PAUSED;
        c.pass(&c.data(MSS, MSS));
        c.now += 7 * MS;
        let (_, out) = c.acks(2 * MSS, WINDOW);
        assert_eq!(out.events & EVENT_SAMPLE_EARLY, 0, "nobody had acknowledged this one");
        assert_eq!(out.sample_ns, 7 * MS);
    }
}

#[test]
fn keep_alives_and_probes_of_the_vm_pass_while_bytes_are_outstanding() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, MSS));
        let ack = c.ack_of_vm(0, WINDOW);
        let probe = segment { seq: ack.seq.add(u32::MAX), ..ack };
        assert_eq!(c.hear(&probe).0, FromVm::Rewrite);
    }
}
