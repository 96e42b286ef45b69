//! Retransmission: after the VM's reports, and after timeouts.

use vsnoop_hold::{Flow, Reason};

use crate::case::*;

/// Ten segments were handed over, all there is.
fn handed() -> HoldCase {
    HoldCase::new(held(10_000, 10_000, 20_000))
}

#[test]
fn three_duplicate_acks_prove_a_loss() {
    let mut c = handed();
    for _ in 0..2 {
        c.duplicate_ack(&[(1_000, 2_000)]);
        assert_eq!(c.send(), None);
    }
    c.duplicate_ack(&[(1_000, 2_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
}

#[test]
fn blocks_of_three_segments_prove_it_at_once() {
    let mut c = handed();
    c.duplicate_ack(&[(1_000, 2_999)]);
    assert_eq!(c.send(), None);
    c.duplicate_ack(&[(1_000, 3_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
}

/// A Linux sender, too, repeats at a window update what it knows to be lost.
#[test]
fn a_vm_without_memory_gets_what_it_dropped_when_it_opens_its_window() {
    let mut c = handed();
    c.acks(0, 0);
    assert_eq!(c.send(), None);
    c.acks(0, 20_000);
    c.h.dropped += 1;
    assert_eq!(c.send_all(), [resend(0, 10_000)]);
    // Again, and what is sent again is dropped, too.
    c.acks(0, 0);
    assert_eq!(c.send(), None);
    c.acks(0, 5_000);
    c.h.dropped += 1;
    assert_eq!(c.send_all(), [resend(0, 5_000)]);
    assert_eq!(c.send(), None, "it is on its way");
}

#[test]
fn reports_that_an_earlier_engine_has_heard_prove_nothing() {
    let mut h = held(10_000, 10_000, 20_000);
    h.duplicate_acks = 50;
    let mut c = HoldCase::new(h);
    c.sacks(&[(1_000, 2_000)]);
    assert_eq!(c.send(), None);
    for _ in 0..3 {
        assert_eq!(c.send(), None);
        c.duplicate_ack(&[(1_000, 2_000)]);
    }
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
}

#[test]
fn progress_of_the_vm_refutes_a_loss() {
    let mut c = handed();
    for _ in 0..2 {
        c.duplicate_ack(&[(1_000, 2_000)]);
        c.send();
    }
    c.acks(2_000, 20_000);
    c.duplicate_ack(&[(3_000, 4_000)]);
    assert_eq!(c.send(), None);
}

#[test]
fn all_holes_below_the_highest_block_are_sent_again_once() {
    let mut c = handed();
    c.duplicate_ack(&[(8_000, 9_000), (1_000, 2_000), (4_000, 6_000)]);
    let holes = [resend(0, 1_000), resend(2_000, 2_000), resend(6_000, 2_000)];
    assert_eq!(c.send_all(), holes);
    c.duplicate_ack(&[(8_000, 9_000), (1_000, 2_000), (4_000, 6_000)]);
    assert_eq!(c.send(), None, "they are on their way");
    // Bytes beyond the highest block may still be on their way.
}

#[test]
fn a_hole_that_is_filled_is_not_sent_again() {
    let mut c = handed();
    c.duplicate_ack(&[(8_000, 9_000), (1_000, 2_000), (4_000, 6_000)]);
    assert_eq!(c.send(), Some(resend(0, 1_000)));
    c.acks(2_000, 20_000);
    c.sacks(&[(8_000, 9_000), (4_000, 6_000)]);
    assert_eq!(c.send(), Some(resend(2_000, 2_000)));
    c.acks(6_000, 20_000);
    c.sacks(&[(6_500, 9_000)]);
    assert_eq!(c.send_all(), [resend(6_000, 500)]);
}

#[test]
fn what_was_reported_earlier_is_not_sent_again() {
    let mut c = handed();
    // An ACK has room for the latest blocks.
    c.duplicate_ack(&[(1_000, 2_000)]);
    assert_eq!(c.send(), None);
    c.duplicate_ack(&[(3_000, 4_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000), resend(2_000, 1_000)]);
}

#[test]
fn a_lost_retransmission_is_sent_again_when_something_later_arrives() {
    let mut h = held(10_000, 30_000, 20_000);
    h.high_seq = at(10_000);
    let mut c = HoldCase::new(h);
    c.duplicate_ack(&[(1_000, 4_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000), handover(10_000, 10_000)]);
    // A block of bytes sent before the retransmission proves nothing.
    c.duplicate_ack(&[(1_000, 10_000)]);
    assert_eq!(c.send(), None);
    // A block of bytes sent after it does.
    c.duplicate_ack(&[(1_000, 11_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
    c.duplicate_ack(&[(1_000, 15_000)]);
    assert_eq!(c.send(), None, "again only when something later yet arrives");
}

#[test]
fn recovery_ends_where_it_began() {
    let mut c = handed();
    c.duplicate_ack(&[(1_000, 4_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
    c.acks(10_000, 30_000);
    c.sacks(&[]);
    c.h.tail = at(14_000);
    c.h.high_seq = at(14_000);
    assert_eq!(c.send(), None);
    c.duplicate_ack(&[(11_000, 14_000)]);
    assert_eq!(c.send_all(), [resend(10_000, 1_000)]);
}

#[test]
fn without_sack_a_segment_is_sent_again_and_twice_as_much_with_each_ack_that_falls_short() {
    let mut c = HoldCase::new(held(150_000, 150_000, 200_000));
    for _ in 0..3 {
        assert_eq!(c.send(), None);
        c.duplicate_ack(&[]);
    }
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
    c.duplicate_ack(&[]);
    assert_eq!(c.send(), None, "the same report again");
    c.acks(1_000, 200_000);
    assert_eq!(c.send_all(), [resend(1_000, 2_000)]);
    // Below what was sent again: the rest is on its way.
    c.acks(2_000, 200_000);
    assert_eq!(c.send_all(), [resend(3_000, 2_000)]);
    c.acks(5_000, 200_000);
    assert_eq!(c.send_all(), [resend(5_000, 6_000)]);
    c.acks(150_000, 200_000);
    assert_eq!(c.send(), None);
}

#[test]
fn without_sack_a_segment_for_each_hole_is_sent_again_where_the_vm_has_the_rest() {
    let mut c = HoldCase::new(held(150_000, 150_000, 200_000));
    for _ in 0..3 {
        assert_eq!(c.send(), None);
        c.duplicate_ack(&[]);
    }
    for (hole, next) in [(0, 20_000), (20_000, 50_000), (50_000, 149_000), (149_000, 150_000)] {
        assert_eq!(c.send_all(), [resend(hole, 1_000)]);
        c.acks(next, 200_000);
    }
    assert_eq!(c.send(), None);
}

#[test]
fn a_lost_tail_of_single_segments_is_mended_in_round_trips_of_the_vm() {
    let mut c = HoldCase::new(held(40_000, 40_000, 60_000)).single_segments();
    c.run_time_ns = 200 * MS;
    let (mut acked, mut round_trips) = (0, 0);
    while acked < 40_000 {
        let sent = c.send_all();
        let again = sent.iter().filter(|frame| frame.len > 0);
        acked = again.map(|frame| frame.end().diff(at(0)) as u32).max().expect("something");
        c.acks(acked, acked + 20_000);
        round_trips += 1;
    }
    assert!(round_trips <= 6, "{round_trips}");
    assert_eq!(c.run_time_ns, 200 * MS, "no other timeout");
}

#[test]
fn a_tail_lost_behind_a_hole_is_sent_again_when_the_hole_is_filled() {
    let mut c = handed();
    c.duplicate_ack(&[(1_000, 4_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
    // The VM read what was sent again after all that had been handed over.
    c.acks(4_000, 20_000);
    c.sacks(&[]);
    assert_eq!(c.send_all(), [resend(4_000, 6_000)]);
    c.acks(10_000, 20_000);
    assert_eq!(c.send(), None);
}

#[test]
fn blocks_in_what_was_sent_again_after_a_timeout_say_what_is_still_missing() {
    let mut c = handed();
    c.run_time_ns = 200 * MS;
    assert_eq!(c.send_all(), [resend(0, 10_000), keep_alive(0)]);
    c.duplicate_ack(&[(1_000, 3_000), (4_000, 10_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000), resend(3_000, 1_000)]);
}

#[test]
fn a_segment_of_a_vm_that_had_half_of_the_time_and_lacks_the_byte_proves_a_loss() {
    let mut c = handed();
    // It was on its way before.
    c.h.vm_acks += 1;
    c.run_time_ns = 99 * MS;
    assert_eq!(c.send(), None);
    c.h.vm_acks += 1;
    c.run_time_ns = 100 * MS;
    assert_eq!(c.deadline().run_time_ns, Some(100 * MS));
    assert_eq!(c.send(), None);
    assert!(c.flow.wants_acks());
    assert_eq!(c.deadline().run_time_ns, Some(200 * MS));
    c.h.vm_acks += 1;
    assert_eq!(c.send_all(), [resend(0, 10_000), keep_alive(0)]);
    // The same again only after the next, longer time.
    c.h.vm_acks += 1;
    assert_eq!(c.send(), None);
    c.run_time_ns += 200 * MS;
    assert_eq!(c.send(), None);
    c.h.vm_acks += 1;
    assert_eq!(c.send_all(), [resend(0, 10_000), keep_alive(0)]);
}

#[test]
fn a_segment_of_a_vm_without_room_or_with_progress_proves_nothing() {
    for (offset, edge) in [(0, 500), (1_000, 20_000)] {
        let mut c = handed();
        c.run_time_ns = 100 * MS;
        assert_eq!(c.send(), None);
        c.acks(offset, edge);
        assert_eq!(c.send(), None);
    }
}

#[test]
fn a_vm_that_answers_five_retransmissions_below_what_it_has_acknowledged_was_rolled_back() {
    let mut c = handed();
    for timeout in [200, 400, 800, 1_600, 3_200] {
        assert_eq!(c.flow.reason_to_reset(), None, "before {timeout} ms");
        c.h.old_acks += 1;
        c.run_time_ns += timeout * MS;
        c.send_all();
    }
    assert_eq!(c.flow.reason_to_reset(), Some(Reason::RolledBack));
}

#[test]
fn old_acks_that_are_not_answers_prove_no_rollback() {
    // Many at once; between the others it says what it has, or nothing.
    let mut c = handed();
    c.h.old_acks = 1_000;
    for _ in 0..20 {
        c.run_time_ns += 3_200 * MS;
        c.send_all();
        assert_eq!(c.flow.reason_to_reset(), None);
    }
    for _ in 0..20 {
        c.h.old_acks = 1;
        c.run_time_ns += 3_200 * MS;
        c.send_all();
        c.h.old_acks = 0;
        c.run_time_ns += 3_200 * MS;
        c.send_all();
        assert_eq!(c.flow.reason_to_reset(), None);
    }
}

#[test]
fn a_vm_that_had_its_time_and_did_not_answer_is_sent_the_first_frame_again() {
    let mut c = handed();
    c.run_time_ns = 200 * MS - 1;
    assert_eq!(c.send(), None);
    c.run_time_ns += 1;
    // A probe too: the VM's ACK may be what was lost.
    assert_eq!(c.send_all(), [resend(0, 10_000), keep_alive(0)]);
    assert_eq!(c.send(), None);
}

#[test]
fn the_time_doubles_up_to_sixteen_times_until_the_vm_takes_something() {
    let mut c = handed();
    for patience in [200, 400, 800, 1_600, 3_200, 3_200, 3_200] {
        c.run_time_ns += patience * MS - 1;
        assert_eq!(c.send(), None, "{patience} ms");
        c.run_time_ns += 1;
        assert_eq!(c.send_all(), [resend(0, 10_000), keep_alive(0)], "{patience} ms");
    }
    // A sign of life is not enough.
    c.h.vm_acks += 1;
    c.run_time_ns += 3_200 * MS - 1;
    assert_eq!(c.send(), None);
    c.acks(1_000, 20_000);
    assert_eq!(c.send_all(), [], "the rest is on its way");
    c.run_time_ns += 200 * MS;
    assert_eq!(c.send_all(), [resend(1_000, 9_000), keep_alive(1_000)]);
}

#[test]
fn progress_begins_the_time_anew() {
    let mut c = handed();
    c.run_time_ns += 199 * MS;
    c.acks(1_000, 20_000);
    assert_eq!(c.send(), None);
    c.run_time_ns += 199 * MS;
    assert_eq!(c.send(), None);
    c.run_time_ns += MS;
    assert_eq!(c.send_all(), [resend(1_000, 9_000), keep_alive(1_000)]);
}

#[test]
fn a_vm_that_had_924_s_and_sent_nothing_is_given_up() {
    let mut c = handed();
    while c.run_time_ns <= 924_000 * MS {
        c.send_all();
        assert_eq!(c.flow.reason_to_reset(), None, "after {} ms", c.run_time_ns / MS);
        c.run_time_ns += 3_200 * MS;
    }
    assert_eq!(c.send_all(), []);
    assert_eq!(c.flow.reason_to_reset(), Some(Reason::Silent));
}

#[test]
fn a_vm_that_could_not_be_asked_is_not_given_up_for_its_silence() {
    let mut c = handed();
    for _ in 0..400 {
        c.run_time_ns += 3_200 * MS;
        // The ring is full.
        c.wants();
        assert_eq!(c.flow.reason_to_reset(), None);
    }
}

#[test]
fn a_vm_whose_acks_come_eight_seconds_late_is_not_given_up() {
    let mut c = handed();
    let mut late = std::collections::VecDeque::new();
    for step in 0..2_000u32 {
        c.run_time_ns += 50 * MS;
        c.now_ns += 50 * MS;
        for frame in c.send_all() {
            let end = frame.end().diff(at(0)).max(0) as u32;
            late.push_back((step + 160, end));
        }
        while late.front().is_some_and(|&(due, _)| due <= step) {
            let (_, end) = late.pop_front().expect("there is one");
            let before = c.h.vm_seq.diff(at(0)) as u32;
            c.acks(end.max(before), end.max(before) + 10_000);
            if end <= before {
                c.h.duplicate_acks += 1;
            }
            // The sender goes on.
            let tail = c.h.vm_seq.diff(at(0)) as u32 + 10_000;
            (c.h.tail, c.h.high_seq) = (at(tail), at(tail));
        }
        assert_eq!(c.flow.reason_to_reset(), None, "in step {step}");
    }
    assert!(c.h.vm_seq.diff(at(0)) > 50_000);
}

/// A VM that answers, and accepts nothing.
fn talks(c: &mut HoldCase) {
    c.run_time_ns += 3_200 * MS;
    c.send_all();
    c.duplicate_ack(&[]);
    c.send_all();
}

/// Until it is given up; returns how often it answered.
fn talks_on(c: &mut HoldCase) -> u32 {
    let mut times = 0;
    while c.flow.reason_to_reset().is_none() {
        assert!(times < 400, "it never is");
        talks(c);
        times += 1;
    }
    assert_eq!(c.flow.reason_to_reset(), Some(Reason::Refused));
    times
}

#[test]
fn a_vm_that_has_closed_its_window_is_not_given_up_as_long_as_it_answers() {
    // No window; or less than a segment, with more held.
    for edge in [0, MSS - 1] {
        let mut c = handed();
        c.acks(0, edge);
        for _ in 0..400 {
            talks(&mut c);
            assert_eq!(c.flow.reason_to_reset(), None);
        }
    }
}

#[test]
fn a_vm_that_answers_and_does_not_take_what_it_has_room_for_is_given_up() {
    for edge in [MSS, 20_000] {
        let mut c = handed();
        c.acks(0, edge);
        c.send();
        assert!(talks_on(&mut c) > 16);
        assert!(c.run_time_ns > 924_000 * MS);
    }
}

#[test]
fn a_window_with_room_for_the_last_bytes_is_open() {
    let mut c = HoldCase::new(held(100, 100, 100));
    talks_on(&mut c);
}

#[test]
fn progress_or_a_closed_window_restarts_the_count_of_refusals() {
    let progress = |c: &mut HoldCase| c.acks(1_000, 20_000);
    let closed = |c: &mut HoldCase| {
        c.acks(0, 0);
        c.send();
        c.acks(0, 20_000);
    };
    let once = talks_on(&mut handed());
    for again in [progress, closed] {
        let mut c = handed();
        (1..once).for_each(|_| talks(&mut c));
        again(&mut c);
        c.send();
        for _ in 1..once {
            talks(&mut c);
            assert_eq!(c.flow.reason_to_reset(), None);
        }
        talks_on(&mut c);
    }
}

#[test]
fn a_vm_that_was_not_handed_anything_has_not_refused_it() {
    // The next byte is still held; or there is no copy, and the sender retransmits.
    let mut waits = held(0, 10_000, 20_000);
    waits.high_seq = at(0);
    let mut before = held(10_000, 10_000, 20_000);
    before.first = at(5_000);
    for h in [waits, before] {
        let mut c = HoldCase::new(h);
        for _ in 0..400 {
            c.run_time_ns += 3_200 * MS;
            // The ring is full.
            c.wants();
            c.h.vm_acks += 1;
            c.wants();
            assert_eq!(c.flow.reason_to_reset(), None);
        }
    }
}

#[test]
fn a_vm_that_does_not_run_loses_nothing() {
    let mut c = handed();
    for _ in 0..1_000 {
        assert_eq!(c.send(), None);
    }
}

#[test]
fn nothing_is_sent_again_beyond_a_window_that_was_taken_back() {
    let mut c = handed();
    c.acks(2_000, 5_000);
    c.run_time_ns = 200 * MS;
    c.send();
    c.run_time_ns += 200 * MS;
    assert_eq!(c.send_all(), [resend(2_000, 3_000), keep_alive(2_000)]);
    // A closed window is probed.
    let mut c = handed();
    c.acks(2_000, 2_000);
    c.send();
    c.run_time_ns += 200 * MS;
    assert_eq!(c.send_all(), [probe(2_000)]);
    c.acks(2_000, 20_000);
    assert_eq!(c.send_all(), [resend(2_000, 8_000)]);
}

#[test]
fn a_lost_fin_is_sent_again_with_the_last_byte_or_alone() {
    let mut c = HoldCase::new(held(3_001, 3_000, 9_000)).fin();
    c.run_time_ns = 200 * MS;
    assert_eq!(c.send(), Some(with_fin(resend(0, 3_000))));
    let mut c = HoldCase::new(held(3_001, 3_000, 9_000)).fin();
    c.acks(3_000, 3_000);
    c.send();
    c.run_time_ns = 200 * MS;
    assert_eq!(c.send(), Some(with_fin(resend(3_000, 0))));
    c.acks(3_001, 9_000);
    assert_eq!(c.send(), None);
}

#[test]
fn a_hole_before_the_fin_is_sent_without_it() {
    let mut c = HoldCase::new(held(10_001, 10_000, 20_000)).fin();
    c.duplicate_ack(&[(1_000, 10_001)]);
    assert_eq!(c.send_all(), [resend(0, 1_000)]);
}

#[test]
fn retransmissions_go_before_held_bytes() {
    let mut c = HoldCase::new(held(10_000, 30_000, 20_000));
    c.duplicate_ack(&[(1_000, 4_000)]);
    assert_eq!(c.send_all(), [resend(0, 1_000), handover(10_000, 10_000)]);
}

#[test]
fn bytes_without_a_copy_are_not_retransmitted() {
    // Handed over before the flow had a hold: the sender retransmits.
    let mut h = held(10_000, 10_000, 20_000);
    h.first = at(5_000);
    let mut c = HoldCase::new(h);
    for _ in 0..5 {
        c.duplicate_ack(&[(1_000, 4_000)]);
        assert_eq!(c.send(), None);
    }
    c.run_time_ns = 200 * MS;
    assert_eq!(c.send_all(), [keep_alive(0)], "it is asked, at most");
    c.acks(5_000, 20_000);
    c.duplicate_ack(&[(6_000, 9_000)]);
    assert_eq!(c.send_all(), [resend(5_000, 1_000)]);
}

#[test]
fn a_flow_without_memory_sends_no_bytes() {
    let mut h = held(10_000, 10_000, 20_000);
    h.chunks = 0;
    let mut c = HoldCase::new(h);
    c.duplicate_ack(&[(1_000, 9_000)]);
    c.run_time_ns = 1_000 * MS;
    assert!(c.send_all().iter().all(|frame| frame.len == 0));
}

#[test]
fn a_new_engine_resends_and_probes_at_once() {
    // Engines that are replaced quickly never run for a whole timeout.
    let mut c = handed();
    c.flow = Flow::resumed(&c.view(), c.time());
    assert_eq!(c.send_all(), [resend(0, 10_000), keep_alive(0)]);
    // Not if the VM has acknowledged everything.
    let mut c = handed();
    c.acks(10_000, 20_000);
    c.flow = Flow::resumed(&c.view(), c.time());
    assert_eq!(c.send(), None);
}
