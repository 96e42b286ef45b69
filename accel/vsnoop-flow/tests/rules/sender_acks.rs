//! The sender's ACK and window reach the VM at once, even if the VM does not get the segment that
//! has them.

use vsnoop_flow::hold::{self, Kept, Verdict};
use vsnoop_flow::{outcome, segment, types::*};

use crate::case::*;

/// The sender's latest window.
const SENDER_WINDOW: u16 = 10_000;

/// End of the held stream; the VM has sent 100 bytes.
const END: u32 = FULL + 2 * MSS;

/// The VM knows the sender's latest ACK and window.
fn heard(mut c: FlowCase) -> FlowCase {
    let next = c.f.next_seq.diff(at(0)) as u32;
    c.hear(&c.data_of_vm(0, 100, c.f.vm_seq.diff(at(0)) as u32));
    c.decide(&c.ack_of_sender(next, 0));
    assert_eq!((c.h.snd_una, c.h.sender_window), (vm_at(0), SENDER_WINDOW));
    c
}

/// Segments with an ACK or a window, and whether that is new to the VM.
fn kinds(s: segment) -> [(segment, bool); 4] {
    let s = segment { ack: vm_at(0), ..s };
    [
        (segment { ack: vm_at(100), ..s }, true),
        (segment { ack: vm_at(1), window: 5, ..s }, true),
        (segment { window: 5, ..s }, true),
        (s, false),
    ]
}

#[track_caller]
fn forwards_sender_ack(c: &FlowCase, s: &segment, out: &outcome, is_new: bool) {
    assert_eq!(out.events & EVENT_SENDER_ACK != 0, is_new, "{s:?}");
    let ack = hold::sender_ack(&c.f, &c.h);
    assert_eq!((ack.ack, ack.window), (s.ack, s.window));
    assert_eq!(ack.seq, c.f.high_seq, "where the VM accepts it");
    assert_eq!(ack.timestamps, 1);
    assert_eq!(ack.tsval, c.h.handed_tsval, "not newer than the frames of the engine");
    assert_eq!(ack.tsecr, c.h.tsecr);
    assert_eq!(ack.sack, 0);
}

#[test]
fn the_ack_of_a_segment_held_beyond_the_window_reaches_the_vm() {
    for case in [FlowCase::full(), FlowCase::holding()] {
        let case = heard(case);
        let next = case.f.next_seq.diff(at(0)) as u32;
        for (s, is_new) in kinds(case.data(next, MSS)) {
            let mut c = case.clone();
            let out = c.held(&s);
            forwards_sender_ack(&c, &s, &out, is_new);
        }
    }
}

#[test]
fn the_ack_of_a_segment_kept_beyond_a_hole_reaches_the_vm() {
    for case in [FlowCase::new(), FlowCase::holding()] {
        let case = heard(case);
        let next = case.f.next_seq.diff(at(0)) as u32;
        for (s, is_new) in kinds(case.data(next + MSS, MSS)) {
            let mut c = case.clone();
            let out = c.held(&s);
            assert_ne!(out.events & EVENT_OUT_OF_ORDER, 0);
            forwards_sender_ack(&c, &s, &out, is_new);
        }
    }
}

#[test]
fn the_ack_of_a_retransmission_that_the_host_answers_reaches_the_vm() {
    for (case, offset) in [(FlowCase::full(), FULL - MSS), (FlowCase::holding(), END - MSS)] {
        let case = heard(case);
        for (s, is_new) in kinds(case.data(offset, MSS)) {
            // Older than the segment with the latest window: not new then.
            let is_new = is_new && s.ack != vm_at(0);
            let s = segment { window: SENDER_WINDOW, ..s };
            let mut c = case.clone();
            let (verdict, out) = c.not_kept(&s);
            assert_eq!(verdict, Verdict::Reack);
            forwards_sender_ack(&c, &s, &out, is_new);
        }
    }
}

#[test]
fn the_ack_of_a_probe_that_the_host_answers_reaches_the_vm() {
    let case = heard(FlowCase::new());
    let mut c = case;
    c.early(&segment { ack: vm_at(0), ..c.data(0, MSS) });
    let s = segment { ack: vm_at(100), ..c.data(MSS - 1, 0) };
    let (verdict, out) = c.not_kept(&s);
    assert_eq!(verdict, Verdict::Reack);
    forwards_sender_ack(&c, &s, &out, true);
}

#[test]
fn the_ack_of_a_dropped_segment_reaches_the_vm() {
    let case = heard(FlowCase::holding());
    for (s, is_new) in kinds(case.data(END, 10)) {
        let urgent = segment { tcp_flags: ACK | URG, ..s };
        let fin = segment { tcp_flags: ACK | FIN, len: 0, ..s };
        for s in [urgent, fin] {
            let mut c = case.clone();
            let (verdict, out) = c.not_kept(&s);
            assert_eq!(verdict, Verdict::Drop);
            forwards_sender_ack(&c, &s, &out, is_new);
        }
        // Without memory.
        let mut c = case.clone();
        assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
        let (kept, out) = c.after_copy(&s, false, false);
        assert_eq!(kept, Kept::Reack);
        forwards_sender_ack(&c, &s, &out, is_new);
    }
}

#[test]
fn the_ack_of_a_segment_that_the_ring_refuses_reaches_the_vm() {
    let case = heard(FlowCase::new());
    for (s, is_new) in kinds(case.data(0, MSS)) {
        let mut c = case.clone();
        assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
        let (_, out) = c.after_copy(&s, true, false);
        forwards_sender_ack(&c, &s, &out, is_new);
    }
}

/// The engine has been writing a frame for `since` ns.
fn writes_a_frame(mut c: FlowCase, since: u64) -> FlowCase {
    c.wait(since);
    c.h.sending = hold::sending_since(c.now - since);
    c
}

#[test]
fn while_the_engine_writes_a_frame_it_carries_the_senders_new_acks() {
    for case in [FlowCase::full(), FlowCase::holding()] {
        let case = writes_a_frame(heard(case), MS);
        let next = case.f.next_seq.diff(at(0)) as u32;
        for (s, is_new) in kinds(case.data(next, 0)) {
            let mut c = case.clone();
            let (verdict, out) = c.not_kept(&s);
            assert_eq!(verdict == Verdict::Drop, is_new, "{s:?}");
            let events = EVENT_ACK_WAITS | EVENT_WAKE;
            assert_eq!(out.events & events, if is_new { events } else { 0 });
            assert_eq!(c.h.ack_waits, u32::from(is_new));
        }
        // Data with a new ACK wait behind the frame, and need no pure ACK.
        let mut c = case.clone();
        let out = c.held(&segment { ack: vm_at(100), ..c.data(next, MSS) });
        assert_eq!(out.events & (EVENT_SENDER_ACK | EVENT_WAKE), EVENT_WAKE);
        assert_eq!(c.h.ack_waits, 1);
        // What must reach the VM itself does.
        let mut c = case.clone();
        let rst = segment { tcp_flags: RST, ack: vm_at(100), ..c.data(next, 0) };
        assert_ne!(c.decide(&rst).0, Verdict::Drop);
    }
    let mut c = writes_a_frame(heard(FlowCase::accepted()), MS);
    let s = segment { ack: vm_at(100), ..c.data(0, MSS) };
    c.held(&s);
    assert_eq!(c.h.ack_waits, 1);
}

#[test]
fn an_engine_that_was_killed_while_it_wrote_a_frame_delays_no_ack_for_long() {
    let mut c = writes_a_frame(heard(FlowCase::full()), 100 * MS);
    c.pass(&segment { ack: vm_at(100), ..c.data(FULL, 0) });
    assert_eq!(c.h.ack_waits, 0);
}

#[test]
fn a_segment_that_reaches_the_vm_needs_no_ack_of_its_own() {
    let case = heard(FlowCase::new());
    for (s, _) in kinds(case.data(0, MSS)) {
        let out = case.clone().early(&s);
        assert_eq!(out.events & EVENT_SENDER_ACK, 0);
    }
    // A pure ACK itself reaches the VM, whether it passes or is forwarded.
    for (case, offset) in [(FlowCase::new(), 0), (FlowCase::holding(), END)] {
        let case = heard(case);
        for (s, _) in kinds(case.data(offset, 0)) {
            let (verdict, out) = case.clone().not_kept(&s);
            assert!(matches!(verdict, Verdict::Pass | Verdict::Forward));
            assert_eq!(out.events & EVENT_SENDER_ACK, 0);
        }
    }
}

#[test]
fn the_ack_of_a_segment_with_some_new_bytes_is_noted() {
    let case = heard(FlowCase::new());
    let mut case = case;
    case.early(&segment { ack: vm_at(0), ..case.data(0, 2 * MSS) });
    case.acks(MSS, WINDOW);
    // A retransmission cut otherwise: the VM takes what is new of it, and its ACK.
    for (offset, len, is_noted) in [(MSS / 2, MSS, true), (MSS - 1, 2, true), (0, MSS, false)] {
        let mut c = case.clone();
        c.decide(&segment { ack: vm_at(100), ..c.data(offset, len) });
        assert_eq!(c.h.snd_una == vm_at(100), is_noted, "{offset}+{len}");
    }
}

#[test]
fn an_ack_older_than_that_of_an_old_segment_is_noted() {
    let mut case = FlowCase::new();
    case.early(&case.data(0, 2 * MSS));
    case.acks(MSS, WINDOW);
    let mut c = heard(case);
    // The VM drops this one, with its ACK.
    c.decide(&segment { ack: vm_at(100), ..c.data(0, MSS) });
    assert_eq!(c.h.snd_una, vm_at(0));
    // This one was sent before, and the VM gets it.
    c.decide(&c.ack_of_sender(2 * MSS, 60));
    assert_eq!(c.h.snd_una, vm_at(60));
}

/// The handshake's ACK was lost, and the data after it came beyond a hole. The record of the hold
/// had another flow before, perhaps with the same window.
#[test]
fn the_first_ack_of_a_sender_reaches_the_vm_whatever_the_record_had_before() {
    for window in [0, 1, SENDER_WINDOW, u16::MAX] {
        let mut c = FlowCase::unconfirmed().unbounded();
        c.h.sender_window = window;
        c.begin_hold();
        let first = c.data(MSS, MSS);
        assert_ne!(c.held(&first).events & EVENT_SENDER_ACK, 0, "{window}");
        let ack = hold::sender_ack(&c.f, &c.h);
        assert_eq!((ack.seq, ack.ack, ack.window), (at(0), vm_at(0), SENDER_WINDOW));
        let second = c.data(2 * MSS, MSS);
        assert_eq!(c.held(&second).events & EVENT_SENDER_ACK, 0, "{window}");
    }
}
