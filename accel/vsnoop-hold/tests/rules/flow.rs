//! Data that the engine hands over, and the time: the VM's window, the FIN, the sender's ACKs, a
//! closed window.

use vsnoop_hold::{Deadline, HoldFrame, Kind, PATIENCE_NS};

use crate::case::*;

#[test]
fn what_is_held_is_handed_over_as_far_as_the_vms_window_goes() {
    let mut c = HoldCase::new(held(1_000, 20_000, 11_000));
    assert_eq!(c.send(), Some(handover(1_000, 10_000)));
    assert_eq!(c.send(), None);
    c.acks(11_000, 30_000);
    assert_eq!(c.send(), Some(handover(11_000, 9_000)));
    assert_eq!(c.send(), None);
}

#[test]
fn super_packets_are_of_whole_segments_and_no_larger_than_a_packet_can_be() {
    let mut c = HoldCase::new(held(0, 150_500, 200_000));
    assert_eq!(
        c.send_all(),
        [handover(0, 65_000), handover(65_000, 65_000), handover(130_000, 20_500)]
    );
    // If a segment is larger than a frame, one segment.
    let mut c = HoldCase::new(held(0, 150_000, 200_000));
    c.h.mss = 65_483;
    assert_eq!(c.send().map(|frame| frame.len), Some(65_483));
}

#[test]
fn less_than_a_segment_waits_while_the_vm_has_something_to_answer() {
    let mut c = HoldCase::new(held(1_000, 20_000, 1_999));
    assert_eq!(c.send(), None);
    c.acks(0, 2_000);
    assert_eq!(c.send(), Some(handover(1_000, 1_000)));
}

#[test]
fn less_than_a_segment_is_sent_when_nothing_else_would_open_the_window() {
    let mut c = HoldCase::new(held(1_000, 20_000, 1_100));
    c.acks(1_000, 1_100);
    assert_eq!(c.send(), Some(handover(1_000, 100)));
    assert_eq!(c.send(), None);
}

#[test]
fn less_than_half_of_the_widest_window_waits_for_more() {
    let mut c = HoldCase::new(held(0, 100_000, 20_000));
    assert_eq!(c.send_all(), [handover(0, 20_000)]);
    // The VM has neither read nor acknowledged everything: the window is what is left.
    c.acks(19_000, 29_999);
    assert_eq!(c.send(), None);
    c.acks(19_000, 30_000);
    assert_eq!(c.send_all(), [handover(20_000, 10_000)]);
    // A portion may have several frames, and includes window that opens meanwhile.
    c.acks(29_000, 230_000);
    c.h.tail = at(400_000);
    assert_eq!(c.send(), Some(handover(30_000, 65_000)));
    c.acks(95_000, 235_000);
    assert_eq!(c.send_all().len(), 3);
    c.acks(234_000, 300_000);
    assert_eq!(c.send(), None);
}

#[test]
fn a_vm_that_has_acknowledged_everything_is_handed_what_fits_at_once() {
    let mut c = HoldCase::new(held(0, 100_000, 20_000));
    c.send_all();
    c.acks(20_000, 24_344);
    assert_eq!(c.send_all(), [handover(20_000, 4_344)]);
    c.acks(24_344, 24_344 + MSS);
    assert_eq!(c.send_all(), [handover(24_344, MSS)]);
}

#[test]
fn a_window_that_stays_small_is_used_in_the_vms_own_time() {
    let mut c = HoldCase::new(held(0, 100_000, 20_000));
    c.send_all();
    c.acks(19_000, 28_000);
    assert_eq!(c.send(), None);
    assert_eq!(c.deadline(), Deadline { now_ns: None, run_time_ns: Some(PATIENCE_NS) });
    c.run_time_ns = PATIENCE_NS - 1;
    assert_eq!(c.send(), None);
    c.run_time_ns = PATIENCE_NS;
    assert_eq!(c.send_all(), [handover(20_000, 8_000)]);
    // The widest window shrinks to one that stays small.
    let mut waits = 0;
    for round in 0..8 {
        c.acks(27_000 + 8_000 * round, 36_000 + 8_000 * round);
        if c.send().is_none() {
            waits += 1;
            c.run_time_ns += PATIENCE_NS;
            assert_eq!(c.send_all().len(), 1);
        }
    }
    assert_eq!(waits, 1);
}

#[test]
fn the_last_held_bytes_do_not_wait_for_a_portion() {
    let mut c = HoldCase::new(held(0, 24_000, 20_000));
    c.send_all();
    c.acks(19_000, 24_000);
    assert_eq!(c.send_all(), [handover(20_000, 4_000)]);
}

#[test]
fn the_last_held_bytes_are_sent_even_if_few() {
    let mut c = HoldCase::new(held(1_000, 1_001, 9_000));
    assert_eq!(c.send(), Some(handover(1_000, 1)));
}

#[test]
fn bytes_are_handed_over_once() {
    let mut c = HoldCase::new(held(5_000, 5_000, 9_000));
    assert_eq!(c.send(), None);
    // A hook handed it over since.
    let mut c = HoldCase::new(held(1_000, 5_000, 9_000));
    c.h.high_seq = at(5_000);
    assert_eq!(c.send(), None);
}

#[test]
fn what_was_handed_over_and_not_noted_is_handed_over_again() {
    // The engine was killed before it could note it.
    let mut first = HoldCase::new(held(0, 5_000, 9_000));
    let frame = first.wants().expect("there is something");
    let mut second = HoldCase::new(first.h);
    assert_eq!(second.send(), Some(frame));
    // Unless the VM has acknowledged it meanwhile.
    first.acks(5_000, 9_000);
    assert_eq!(HoldCase::new(first.h).send(), None);
}

#[test]
fn the_fin_goes_with_the_last_byte() {
    let mut c = HoldCase::new(held(0, 3_000, 3_000)).fin();
    assert_eq!(c.send_all(), [with_fin(handover(0, 3_000))]);
    assert_eq!(c.h.handed, at(3_001));
    let mut c = HoldCase::new(held(0, 3_000, 2_000)).fin();
    assert_eq!(c.send_all(), [handover(0, 2_000)], "not before");
}

#[test]
fn a_fin_alone_needs_no_room_in_the_window() {
    let mut c = HoldCase::new(held(3_000, 3_000, 9_000)).fin();
    assert_eq!(c.send_all(), [with_fin(handover(3_000, 0))]);
    let mut c = HoldCase::new(held(3_000, 3_000, 3_000)).fin();
    c.acks(3_000, 3_000);
    assert_eq!(c.send_all(), [with_fin(handover(3_000, 0))]);
}

#[test]
fn a_fin_behind_bytes_that_have_no_room_waits_with_them() {
    let mut c = HoldCase::new(held(3_000, 3_500, 3_000)).fin();
    c.acks(3_000, 3_000);
    assert_eq!(c.send(), None);
}

#[test]
fn what_the_sender_acknowledges_goes_alone_when_nothing_else_goes() {
    let mut c = HoldCase::new(held(1_000, 20_000, 1_000));
    assert_eq!(c.send(), None);
    c.h.snd_una = at(7);
    assert_eq!(c.send(), Some(HoldFrame { seq: at(1_000), len: 0, fin: false, kind: Kind::Ack }));
    assert_eq!(c.send(), None);
    c.h.sender_window += 1;
    assert_eq!(c.send().map(|frame| frame.kind), Some(Kind::Ack), "a new window too");
    // A frame with data carries the ACK.
    c.h.snd_una = at(8);
    c.acks(0, 3_000);
    assert_eq!(c.send_all(), [handover(1_000, 2_000)]);
    // With nothing held the sender's own ACKs reach the VM.
    let mut c = HoldCase::new(held(1_000, 1_000, 9_000));
    c.h.snd_una = at(7);
    assert_eq!(c.send(), None);
}

#[test]
fn an_ack_that_the_hooks_dropped_goes_with_the_next_frame_or_alone() {
    for all_handed in [false, true] {
        let tail = if all_handed { 1_000 } else { 20_000 };
        let mut c = HoldCase::new(held(1_000, tail, 1_000));
        c.h.ack_waits = 1;
        let ack = HoldFrame { seq: at(1_000), len: 0, fin: false, kind: Kind::Ack };
        assert_eq!(c.send(), Some(ack));
        c.h.ack_waits = 0;
        assert_eq!(c.send(), None);
    }
    let mut c = HoldCase::new(held(1_000, 20_000, 11_000));
    c.h.ack_waits = 1;
    assert_eq!(c.send(), Some(handover(1_000, 10_000)));
}

#[test]
fn a_frame_that_the_ring_refuses_is_wanted_again() {
    let mut c = HoldCase::new(held(0, 5_000, 9_000));
    assert_eq!(c.wants(), c.wants());
    assert_eq!(c.send(), Some(handover(0, 5_000)));
}

#[test]
fn a_closed_window_is_asked_for_in_the_vms_own_time() {
    let mut c = HoldCase::new(held(1_000, 20_000, 1_000));
    c.acks(1_000, 1_000);
    assert_eq!(c.send(), None);
    c.run_time_ns += 200 * MS - 1;
    assert_eq!(c.send(), None);
    c.run_time_ns += 1;
    assert_eq!(c.send_all(), [probe(1_000)]);
    // The VM answers that its window is still closed: probed again after the same time.
    c.acks(1_000, 1_000);
    c.run_time_ns += 200 * MS;
    assert_eq!(c.send_all(), [probe(1_000)]);
    // The VM does not answer: probed after twice the time.
    c.run_time_ns += 399 * MS;
    assert_eq!(c.send(), None);
    c.run_time_ns += MS;
    assert_eq!(c.send_all(), [keep_alive(1_000)]);
    // It opens.
    c.acks(1_000, 3_000);
    assert_eq!(c.send_all(), [handover(1_000, 2_000)]);
}

#[test]
fn a_probe_that_is_not_answered_is_followed_by_one_of_the_other_form() {
    let mut c = HoldCase::new(held(1_000, 20_000, 1_000));
    c.acks(1_000, 1_000);
    assert_eq!(c.send(), None);
    for form in [probe(1_000), keep_alive(1_000), probe(1_000), keep_alive(1_000)] {
        c.run_time_ns += 3_200 * MS;
        assert_eq!(c.send_all(), [form]);
    }
    // The form that is answered is kept.
    for _ in 0..3 {
        c.acks(1_000, 1_000);
        c.send();
        c.run_time_ns += 3_200 * MS;
        assert_eq!(c.send_all(), [keep_alive(1_000)]);
    }
}

#[test]
fn a_probe_without_a_byte_to_send_is_a_keep_alive() {
    // Only the FIN is unacknowledged, and the VM that dropped it has closed its window.
    let mut c = HoldCase::new(held(3_001, 3_000, 9_000)).fin();
    c.acks(3_000, 3_000);
    c.send();
    c.run_time_ns += 200 * MS;
    assert_eq!(c.send_all(), [with_fin(resend(3_000, 0)), keep_alive(3_000)]);
}

#[test]
fn a_byte_that_a_probe_brought_was_handed_over_when_the_vm_says_so() {
    let mut c = HoldCase::new(held(1_000, 20_000, 1_000));
    c.acks(1_000, 1_000);
    c.send();
    c.run_time_ns += 200 * MS;
    assert_eq!(c.send_all(), [probe(1_000)]);
    assert_eq!(c.view().handed, at(1_000));
    c.acks(1_001, 1_001);
    assert_eq!(c.view().handed, at(1_001));
    c.acks(1_001, 20_000);
    assert_eq!(c.send_all(), [handover(1_001, 18_999)]);
}

#[test]
fn a_timer_runs_while_something_is_outstanding() {
    let c = HoldCase::new(held(1_000, 1_000, 9_000));
    assert!(!c.view().is_done());
    let mut c = HoldCase::new(held(1_000, 1_000, 9_000));
    c.acks(1_000, 9_000);
    assert!(c.view().is_done());
    let c = c.fin();
    assert!(!c.view().is_done(), "the FIN is outstanding");
}

#[test]
fn time_with_nothing_outstanding_does_not_count() {
    let mut c = HoldCase::new(held(1_000, 1_000, 9_000));
    c.acks(1_000, 9_000);
    assert_eq!(c.send(), None);
    c.run_time_ns += 10_000 * MS;
    assert_eq!(c.send(), None);
    c.h.tail = at(2_000);
    c.h.high_seq = at(2_000);
    c.run_time_ns += 199 * MS;
    assert_eq!(c.send(), None);
    c.run_time_ns += MS;
    assert_eq!(c.send(), Some(resend(1_000, 1_000)));
}
