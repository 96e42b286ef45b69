//! Loss inside the guest: what proves it, and what follows.

use vsnoop_flow::{FromVm, Verdict, types::*};

use crate::case::*;

/// Four segments acknowledged early; the VM has taken the first.
fn waiting(mut c: Case) -> Case {
    for i in 0..4 {
        c.early(&c.data(i * MSS, MSS));
    }
    c.vm_acks(MSS, c.window_at(MSS));
    c
}

#[test]
fn three_repeated_acks_below_next_seq_reset_both_sides() {
    for c in Case::both() {
        let mut c = waiting(c);
        assert_eq!(c.vm_sends(&c.sack_of_vm(MSS, 3 * MSS)).0, FromVm::Drop);
        assert_eq!(c.vm_sends(&c.sack_of_vm(MSS, 4 * MSS)).0, FromVm::Drop);
        let (verdict, out) = c.vm_sends(&c.sack_of_vm(MSS, 5 * MSS));
        assert_eq!(verdict, FromVm::Loss);
        assert_eq!(out.events, EVENT_LOSS);
        assert_eq!(out.ack.seq, at(MSS), "the VM's RCV.NXT");
        assert_eq!(out.ack.ack, vm_at(0), "the sender's RCV.NXT");
        assert_eq!(c.mode(), flow_mode::FLOW_RESET);
        assert_eq!(c.f.retired, 3 * MSS);
    }
}

/// Far enough apart for repetitions that may have another cause.
const APART: u64 = 300 * MS;

#[test]
fn without_sack_repetitions_over_half_a_second_reset_both_sides() {
    let mut c = waiting(Case::plain());
    for _ in 0..2 {
        for _ in 0..10 {
            assert_eq!(c.vm_acks(MSS, c.window_at(MSS)).0, FromVm::Drop);
        }
        c.now += APART;
    }
    assert_eq!(c.vm_acks(MSS, c.window_at(MSS)).0, FromVm::Loss);
}

#[test]
fn where_the_device_keeps_no_order_sack_must_say_so_over_half_a_second() {
    for c in Case::both() {
        let mut c = waiting(c);
        c.policy.lists = PORT_UNORDERED;
        for _ in 0..2 {
            for _ in 0..10 {
                assert_eq!(c.vm_sends(&c.sack_of_vm(MSS, 4 * MSS)).0, FromVm::Drop);
            }
            c.now += APART;
        }
        assert_eq!(c.vm_sends(&c.sack_of_vm(MSS, 4 * MSS)).0, FromVm::Loss);
    }
}

#[test]
fn with_sack_a_repetition_without_blocks_proves_nothing() {
    for c in Case::both() {
        let mut c = waiting(c);
        for _ in 0..10 {
            assert_eq!(c.vm_acks(MSS, c.window_at(MSS)).0, FromVm::Drop);
        }
        // Nor does the report of a duplicate (RFC 2883).
        for _ in 0..10 {
            assert_eq!(c.vm_sends(&c.sack_of_vm(MSS, MSS / 2)).0, FromVm::Drop);
        }
        assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
    }
}

#[test]
fn acks_that_were_asked_for_are_no_proof_of_loss() {
    let mut c = waiting(Case::plain());
    // A sender that went back, and ACKs so late that PAWS refuses them: the VM
    // repeats its ACK for each, as long as its ring lasts.
    for _ in 0..10 {
        c.pass(&c.data(0, MSS));
        c.pass(&c.ack_of_sender(4 * MSS, 0));
    }
    for i in 0..20 {
        assert_ne!(c.vm_acks(MSS, c.window_at(MSS)).0, FromVm::Loss, "answer {i}");
    }
    c.now += APART;
    c.vm_acks(2 * MSS, c.window_at(2 * MSS));
    for _ in 0..3 {
        assert_ne!(c.vm_acks(2 * MSS, c.window_at(2 * MSS)).0, FromVm::Loss);
    }
}

#[test]
fn a_probe_of_the_vm_is_no_proof_of_loss() {
    let mut c = Case::plain();
    c.vm_sends(&c.data_of_vm(0, 50, 0));
    let mut c = waiting(c);
    for _ in 0..5 {
        c.now += APART;
        let probe = vsnoop_flow::segment { seq: vm_at(49), ..c.ack_of_vm(MSS, c.window_at(MSS)) };
        assert_ne!(c.vm_sends(&probe).0, FromVm::Loss);
    }
}

#[test]
fn a_window_update_is_no_proof_of_loss() {
    let mut c = waiting(Case::plain());
    for i in 0..5 {
        c.now += APART;
        assert_ne!(c.vm_acks(MSS, c.window_at(MSS) + i).0, FromVm::Loss);
    }
}

#[test]
fn data_of_the_vm_is_no_proof_of_loss() {
    for c in Case::both() {
        let mut c = waiting(c);
        for i in 0..5 {
            let mut s = c.data_of_vm(i * 10, 10, MSS);
            s.bits |= SEG_SACK as u16;
            s.sack_end = at(4 * MSS);
            assert_eq!(c.vm_sends(&s).0, FromVm::Rewrite);
        }
    }
}

#[test]
fn progress_of_the_vm_refutes_a_loss() {
    for c in Case::both() {
        let mut c = waiting(c);
        c.vm_sends(&c.sack_of_vm(MSS, 3 * MSS));
        c.vm_sends(&c.sack_of_vm(MSS, 4 * MSS));
        c.vm_acks(2 * MSS, c.window_at(2 * MSS));
        assert_eq!(c.vm_sends(&c.sack_of_vm(2 * MSS, 4 * MSS)).0, FromVm::Drop);
    }
}

#[test]
fn repeated_acks_of_next_seq_are_the_senders_business() {
    for mut c in Case::both() {
        c.early(&c.data(0, MSS));
        c.vm_acks(MSS, WINDOW);
        for i in 2..8 {
            c.pass(&c.data(i * MSS, MSS));
            assert_eq!(c.vm_sends(&c.sack_of_vm(MSS, (i + 1) * MSS)).0, FromVm::Pass);
        }
    }
}

fn lost() -> Case {
    let mut c = waiting(Case::accepted());
    for _ in 0..3 {
        c.vm_sends(&c.sack_of_vm(MSS, 4 * MSS));
    }
    assert_eq!(c.mode(), flow_mode::FLOW_RESET);
    c
}

#[test]
fn a_reset_flow_answers_both_ends_with_rst() {
    let mut c = lost();
    let (verdict, out) = c.towards_vm(&c.data(4 * MSS, 10));
    assert_eq!(verdict, Verdict::Reset);
    assert_eq!(out.ack.seq, c.f.snd_nxt, "the ACK of the segment: exact for the sender");
    let (verdict, out) = c.vm_sends(&c.data_of_vm(0, 10, MSS));
    assert_eq!(verdict, FromVm::Reset);
    assert_eq!(out.ack.seq, at(MSS), "exact for the VM");
    // A keep-alive of an idle sender too: nobody hangs.
    assert_eq!(c.towards_vm(&c.data(4 * MSS - 1, 0)).0, Verdict::Reset);
}

#[test]
fn a_reset_flow_hands_on_what_is_no_part_of_it() {
    let mut c = lost();
    for flags in [RST, RST | ACK, SYN] {
        let s = vsnoop_flow::segment { tcp_flags: flags, ..c.data(4 * MSS, 0) };
        assert_eq!(c.towards_vm(&s).0, Verdict::Pass);
    }
    assert!(!vsnoop_flow::is_own_syn(&c.f, &vm_syn(ACK)), "a new connection may begin");
    assert_eq!(
        c.vm_sends(&vsnoop_flow::segment { tcp_flags: RST, ..c.ack_of_vm(MSS, 0) }).0,
        FromVm::Pass
    );
}
