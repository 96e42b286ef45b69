//! Once the host has reported bytes beyond a hole, every ACK does until the hole is filled (RFC
//! 2018, section 4).

use vsnoop_flow::{FromVm, segment};

use crate::case::*;

/// An out-of-order range of one segment, beyond a hole of one; the VM was handed all bytes before.
fn with_a_range(mut c: FlowCase) -> FlowCase {
    c.early(&c.data(0, MSS));
    c.held(&c.data(2 * MSS, MSS));
    c
}

#[test]
fn a_pure_ack_of_the_vm_is_replaced_by_one_with_sack() {
    for c in FlowCase::both() {
        let mut c = with_a_range(c);
        c.vm_ts = VM_TS + 9;
        let s = c.ack_of_vm(MSS, c.window_at(MSS));
        let (verdict, out) = c.hear(&s);
        assert_eq!(verdict, FromVm::Replace);
        assert_eq!((out.ack.ack, out.ack.sack), (at(MSS), NUMBER));
        assert_eq!((out.ack.seq, out.ack.tsval, out.ack.tsecr), (s.seq, s.tsval, s.tsecr));
        assert_eq!(out.ack.timestamps, 1);
    }
}

#[test]
fn a_probe_of_the_vm_is_not_replaced() {
    for (acked, window) in [(MSS, WINDOW), (0, WINDOW)] {
        let mut c = FlowCase::accepted();
        c.hear(&c.data_of_vm(0, 10, 0));
        let mut c = with_a_range(c);
        let probe = segment { seq: vm_at(9), ..c.ack_of_vm(acked, window) };
        let (verdict, out) = c.hear(&probe);
        assert_eq!((verdict, out.ack.seq), (FromVm::Replace, vm_at(9)));
    }
}

#[test]
fn a_window_update_carries_sack() {
    for c in FlowCase::both() {
        let mut c = with_a_range(c);
        let (verdict, out) = c.acks(0, 4 * WINDOW);
        assert_eq!((verdict, out.ack.ack, out.ack.sack), (FromVm::Replace, at(MSS), NUMBER));
        assert!((c.edge(&out) - 4 * FULL as i32).abs() < 1 << SCALE);
    }
}

#[test]
fn a_superfluous_ack_is_dropped_while_ranges_are_reported() {
    let mut c = with_a_range(FlowCase::accepted());
    assert_eq!(c.acks(0, c.window_at(0)).0, FromVm::Drop);
}

#[test]
fn data_of_the_vm_carries_no_added_sack() {
    let mut c = with_a_range(FlowCase::accepted());
    let (verdict, out) = c.hear(&c.data_of_vm(0, 10, 0));
    assert_eq!((verdict, out.ack.ack), (FromVm::Rewrite, at(MSS)));
    let (verdict, _) = c.hear(&segment { tcp_flags: ACK | FIN, ..c.ack_of_vm(0, WINDOW) });
    assert_eq!(verdict, FromVm::Rewrite);
}

#[test]
fn a_filled_hole_ends_the_sack_report() {
    let mut c = with_a_range(FlowCase::accepted());
    c.held(&c.data(MSS, MSS));
    c.engine_hands_over(3 * MSS);
    assert_eq!(c.acks(3 * MSS, WINDOW).0, FromVm::Pass);
}

#[test]
fn no_sack_is_sent_to_a_sender_without_sack() {
    let mut c = with_a_range(FlowCase::plain());
    assert_ne!(c.acks(MSS, WINDOW).0, FromVm::Replace);
}
