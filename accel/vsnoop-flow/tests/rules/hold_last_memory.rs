//! Segments that a hold keeps in its last memory: the sender gets their ACK once the VM has taken
//! the others, because only a new ACK ends the growing pauses of a sender that repeats.

use vsnoop_flow::FromVm;
use vsnoop_flow::hold::Kept;
use vsnoop_flow::types::*;

use crate::case::*;

/// Where the held stream of [`FlowCase::holding`] ends.
const END: u32 = FULL + 2 * MSS;

/// A flow in HOLDING with a segment, with these flags besides, in the last memory.
fn withheld(flags: u32) -> FlowCase {
    let mut c = FlowCase::holding();
    let mut s = c.data(END, MSS);
    s.tcp_flags |= flags as u8;
    for _ in 0..2 {
        // The sender repeats it.
        c.decide(&s);
        let (kept, out) = c.after_last_copy(&s);
        assert_eq!((kept, out.ack.ack), (Kept::Reack, at(END)));
        assert_ne!(out.events & EVENT_HOLD_FULL, 0, "an operator may give it more memory");
        assert_eq!((c.f.next_seq, c.h.tail, c.h.reach), (at(END), at(END), at(END + MSS)));
    }
    c
}

/// The VM takes all that is held before the segment.
fn takes_the_others(c: &mut FlowCase) -> (FromVm, outcome) {
    c.engine_hands_over(END);
    c.acks(END, WINDOW)
}

#[test]
fn a_segment_in_the_last_memory_is_acknowledged_when_the_vm_has_taken_the_others() {
    let mut c = withheld(0);
    // A window update alone makes no room.
    c.acks(0, WINDOW);
    assert_eq!(c.f.next_seq, at(END));
    // What the sender would send then (F-RTO) would find no memory.
    c.acks(MSS, WINDOW);
    assert_eq!((c.f.next_seq, c.h.reach), (at(END), at(END + MSS)));
    let (verdict, out) = takes_the_others(&mut c);
    assert_eq!((verdict, out.ack.ack), (FromVm::Rewrite, at(END + MSS)), "it was suppressed");
    assert_ne!(out.events & EVENT_WAKE, 0, "the engine has something to do");
    assert_eq!((c.f.next_seq, c.h.tail), (at(END + MSS), at(END + MSS)));
    let (_, out) = c.acks(END + MSS, WINDOW);
    assert_eq!(out.ack.ack, at(END + MSS));
}

/// Its own TCP would give up one day.
#[test]
fn a_sender_of_a_slow_vm_does_not_wait_for_ever() {
    let mut c = withheld(0);
    c.wait(100_000_000_000);
    c.acks(MSS, WINDOW);
    assert_eq!(c.f.next_seq, at(END + MSS));
}

#[test]
fn a_fin_in_the_last_memory_counts_with_its_bytes() {
    let mut c = withheld(TCP_FIN);
    assert!(!c.holds(HOLD_FIN));
    takes_the_others(&mut c);
    assert!(c.holds(HOLD_FIN));
    assert_eq!((c.h.fin_at, c.f.next_seq), (at(END + MSS), at(END + MSS)));
}

/// The sender repeats it without ECT, if at all (RFC 3168, section 6.1.5).
#[test]
fn a_ce_mark_in_the_last_memory_is_recorded_for_the_engine() {
    let mut c = FlowCase::holding();
    let s = c.data(END, MSS);
    let s = segment { bits: s.bits | SEG_CE as u16, ..s };
    c.decide(&s);
    assert_eq!(c.after_last_copy(&s).0, Kept::Reack);
    assert_eq!(c.h.marked, 1);
    takes_the_others(&mut c);
    assert_eq!((c.f.next_seq, c.h.marked), (at(END + MSS), 1));
}

#[test]
fn a_repeated_segment_is_acknowledged_where_there_is_room_again() {
    let mut c = withheld(0);
    let out = c.held(&c.data(END, MSS));
    assert_eq!((out.ack.ack, c.h.reach), (at(END + MSS), at(END + MSS)));
}

#[test]
fn without_an_engine_nothing_is_acknowledged_from_the_last_memory() {
    let mut c = withheld(0);
    c.now += 2_000_000_000;
    c.acks(MSS, WINDOW);
    assert_eq!((c.f.next_seq, c.h.reach), (at(END), at(END)), "the sender has the bytes");
}

/// All acknowledged bytes have reached the VM: nothing waits for another engine.
#[test]
fn a_dead_engine_leaves_no_flow_behind_that_only_waits_in_the_last_memory() {
    let mut c = withheld(0);
    c.engine_hands_over(END);
    c.now += u64::from(HOLD_ENGINE_GONE_S) * 1_000_000_000 + 1;
    let (verdict, out) = c.decide(&c.ack_of_sender(END, 0));
    assert_eq!(
        (out.events & EVENT_ENGINE_GONE, c.mode()),
        (0, flow_mode::FLOW_ACTIVE),
        "{verdict:?}"
    );
}

/// No ACK of the VM would come that brings the sender its own.
#[test]
fn the_first_segment_that_waits_is_acknowledged_at_once() {
    let mut c = FlowCase::full();
    c.acks(FULL, 0);
    let s = c.data(FULL, MSS);
    c.decide(&s);
    let (kept, out) = c.after_last_copy(&s);
    assert_eq!((kept, out.ack.ack), (Kept::Ack, at(FULL + MSS)));
    assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
}
