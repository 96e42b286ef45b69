//! Stretch ACKs (RFC 2525, section 2.13): the host acknowledges every fourth segment of a bulk
//! transfer, and never keeps a sender waiting.

use vsnoop_flow::hold::{Hand, Kept, Verdict};
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

/// Segments that are acknowledged one by one from the start of a flow.
const RAMP: u32 = 16;
/// The same of segments that wait in the hold.
const LONG_RAMP: u32 = 128;

/// A flow past its ramp.
fn bulk(mut c: FlowCase) -> FlowCase {
    for i in 0..RAMP {
        c.early(&c.data(i * MSS, MSS));
    }
    c
}

fn next(c: &FlowCase) -> u32 {
    c.f.next_seq.diff(at(0)) as u32
}

fn psh(s: segment) -> segment {
    segment { tcp_flags: s.tcp_flags | PSH, ..s }
}

/// Past its ramp, with bytes that wait for room in the VM's window. The last one is acknowledged.
fn bulk_held() -> FlowCase {
    let mut c = bulk(FlowCase::new());
    let rest = FULL - next(&c);
    c.early(&c.data(next(&c), rest));
    for _ in 0..LONG_RAMP - RAMP {
        c.held(&psh(c.data(next(&c), MSS)));
    }
    c
}

/// What becomes of a segment that is kept behind others.
fn keep(c: &mut FlowCase, s: &segment) -> Kept {
    assert_eq!(c.decide(s).0, Verdict::Keep { skip: 0, hand: Hand::Nothing });
    let kept = c.after_copy(s, true, false).0;
    assert_eq!(c.f.next_seq, s.seq.add(s.len), "what is kept counts");
    kept
}

/// Three segments that a later ACK covers.
fn three(c: &mut FlowCase) {
    for _ in 0..3 {
        c.handed_on(&c.data(next(c), MSS));
    }
}

#[test]
fn of_a_bulk_transfer_every_fourth_segment_is_acknowledged() {
    for mss in [MSS, 1_460, 1_000, 536, 8_948] {
        let mut c = bulk(FlowCase::new());
        c.f.mss = mss as u16;
        for round in 0..4 {
            for _ in 0..3 {
                c.handed_on(&segment { unit_len: mss as u16, ..c.data(next(&c), mss) });
            }
            let s = segment { unit_len: mss as u16, ..c.data(next(&c), mss) };
            let before = c.f.early_acks;
            let out = c.early(&s);
            assert_eq!(out.ack.ack, s.seq.add(mss), "round {round} of MSS {mss}");
            assert_eq!(c.f.early_acks, before + 1);
            c.acks(next(&c), WINDOW);
        }
    }
}

#[test]
fn a_segment_that_passes_is_copied_and_not_acknowledged() {
    let mut c = bulk(FlowCase::new());
    let (tail, bytes) = (c.h.tail, c.f.early_bytes);
    three(&mut c);
    assert_eq!(c.h.tail, tail.add(3 * MSS));
    assert_eq!((c.f.early_bytes - bytes, c.f.early_acks), (u64::from(3 * MSS), RAMP));
    assert_eq!(c.f.high_seq, c.f.next_seq, "the VM has it");
}

#[test]
fn segments_that_a_sender_may_wait_for_are_acknowledged_at_once() {
    let kinds: [fn(segment) -> segment; 3] = [
        psh,
        |s| segment { len: MSS - 1, unit_len: (MSS - 1) as u16, ..s },
        |s| segment { len: 4 * MSS, ..s },
    ];
    for kind in kinds {
        let mut c = bulk(FlowCase::new());
        three(&mut c);
        let s = kind(c.data(next(&c), MSS));
        let out = c.early(&s);
        assert_eq!(out.ack.ack, s.seq.add(s.len));
        // From then on every fourth segment is acknowledged again.
        three(&mut c);
    }
}

#[test]
fn a_super_packet_of_four_segments_is_acknowledged_at_once() {
    let mut c = bulk(FlowCase::new());
    c.handed_on(&c.data(next(&c), 3 * MSS));
    c.early(&c.data(next(&c), MSS));
    c.early(&c.data(next(&c), 4 * MSS));
}

#[test]
fn near_the_shown_edge_every_segment_is_acknowledged() {
    let mut c = bulk(FlowCase::accepted().bounded(40 * MSS));
    for i in RAMP..36 {
        let verdict = c.decide(&c.data(i * MSS, MSS)).0;
        let hand = if (i - RAMP) % 4 == 3 { Hand::AndAck } else { Hand::On };
        assert_eq!(verdict, Verdict::Keep { skip: 0, hand }, "segment {i}");
        c.h.claimed = 0;
        c.goes(&c.data(i * MSS, MSS));
    }
    for i in 36..40 {
        c.early(&c.data(i * MSS, MSS));
    }
}

#[test]
fn after_a_loss_every_segment_is_acknowledged() {
    // A hole, a retransmission, a sender that has slowed down.
    let losses: [fn(&mut FlowCase); 3] = [
        |c| {
            let offset = next(c);
            c.held(&c.data(offset + MSS, MSS));
            c.held(&c.data(offset, MSS));
            c.engine_hands_over(offset + 2 * MSS);
        },
        |c| {
            c.not_kept(&c.data(0, MSS));
        },
        |c| {
            let s = c.data(next(c), MSS);
            c.goes(&segment { tcp_flags: ACK | CWR, ..s });
        },
    ];
    for loss in losses {
        let mut c = bulk(FlowCase::new());
        three(&mut c);
        loss(&mut c);
        // One of them may have been the segment itself.
        for _ in 0..RAMP - 2 {
            c.early(&c.data(next(&c), MSS));
        }
    }
}

#[test]
fn holding_begins_at_the_first_byte_not_known_to_be_in_the_ring() {
    let mut c = bulk(FlowCase::new());
    let sure = c.f.next_seq;
    // The ring may have refused them as well: the hooks did not see the result.
    three(&mut c);
    let s = psh(c.data(next(&c), MSS));
    assert_eq!(c.decide(&s).0, Verdict::Keep { skip: 0, hand: Hand::AndAck });
    let (_, out) = c.after_copy(&s, true, false);
    assert_eq!((out.ack.ack, c.mode()), (s.seq.add(MSS), flow_mode::FLOW_HOLDING));
    assert_eq!((c.f.high_seq, c.h.handed, c.h.high_seq), (sure, sure, sure));
    assert_ne!(out.events & EVENT_WAKE, 0);
    // Bytes that the VM has acknowledged meanwhile it has.
    let mut c = bulk(FlowCase::new());
    three(&mut c);
    c.acks(next(&c) - MSS, WINDOW);
    let vm = c.f.vm_seq;
    let s = psh(c.data(next(&c), MSS));
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    c.after_copy(&s, true, false);
    assert_eq!((c.f.high_seq, c.h.handed), (vm, vm));
}

#[test]
fn holding_beyond_the_window_begins_at_the_first_byte_not_known_to_be_in_the_ring() {
    let mut c = bulk(FlowCase::new());
    let sure = c.f.next_seq;
    three(&mut c);
    c.acks(0, ((next(&c)) >> SCALE) as u16);
    c.held(&c.data(next(&c), MSS));
    assert_eq!((c.f.high_seq, c.h.handed), (sure, sure));
}

#[test]
fn holding_again_begins_behind_what_the_engine_has_handed_over() {
    let mut c = FlowCase::holding();
    let end = FULL + 2 * MSS;
    c.acks(MSS, c.window_at(end));
    c.engine_hands_over(end);
    // The VM's window is full again.
    c.held(&c.data(end, MSS));
    assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
    assert_eq!((c.f.high_seq, c.h.handed, c.h.high_seq), (at(end), at(end), at(end)));
}

#[test]
fn the_vms_ack_passes_for_bytes_that_the_host_has_not_acknowledged() {
    // Two segments, and nothing more to send: without vsnoop the VM's ACK would be there now.
    for acked in [MSS, 2 * MSS] {
        let mut c = bulk(FlowCase::accepted());
        let told = next(&c);
        c.handed_on(&c.data(told, MSS));
        c.handed_on(&c.data(told + MSS, MSS));
        let (verdict, out) = c.acks(told + acked, c.window_at(told + acked));
        assert_ne!(verdict, FromVm::Drop, "{acked}");
        assert!(verdict == FromVm::Pass || out.ack.ack == at(told + 2 * MSS));
        // The sender has an ACK of that now: three more segments may pass without one.
        three(&mut c);
        c.early(&c.data(next(&c), MSS));
    }
    let mut c = bulk(FlowCase::accepted());
    let told = next(&c);
    three(&mut c);
    assert_eq!(c.acks(told + MSS, c.window_at(told + MSS)).0, FromVm::Rewrite);
    let again = told + 2 * MSS;
    assert_eq!(c.acks(again, c.window_at(again)).0, FromVm::Drop, "it says nothing new");
}

#[test]
fn the_vms_ack_of_acknowledged_bytes_is_dropped() {
    let mut c = bulk(FlowCase::accepted());
    let told = next(&c);
    c.handed_on(&c.data(told, MSS));
    for acked in [MSS, told - MSS, told] {
        assert_eq!(c.acks(acked, c.window_at(acked)).0, FromVm::Drop);
    }
    // The same ACK is not sent twice.
    c.acks(told + MSS, c.window_at(told + MSS));
    three(&mut c);
    assert_eq!(c.acks(told + MSS, c.window_at(told + MSS)).0, FromVm::Drop);
}

#[test]
fn of_segments_that_wait_every_second_one_is_acknowledged() {
    let mut c = bulk_held();
    for _ in 0..4 {
        let acks = c.f.early_acks;
        let s = c.data(next(&c), MSS);
        assert_eq!(keep(&mut c, &s), Kept::Wait);
        let s = c.data(next(&c), MSS);
        let out = c.held(&s);
        assert_eq!((out.ack.ack, c.f.early_acks), (s.seq.add(MSS), acks + 1));
    }
}

#[test]
fn a_segment_that_waits_is_acknowledged_at_once_where_its_sender_could_wait() {
    let kinds: [fn(&mut FlowCase, segment) -> segment; 6] = [
        |_, s| psh(s),
        |_, s| segment { len: MSS - 1, unit_len: (MSS - 1) as u16, ..s },
        |_, s| segment { len: 2 * MSS, ..s },
        // The sender has one segment in flight, perhaps.
        |c, s| {
            c.now += 3 * MS;
            s
        },
        |c, s| {
            c.f.ramp = LONG_RAMP as u8 - 2;
            s
        },
        // It has filled its window.
        |c, s| {
            c.policy.ahead = FULL + 2 * MSS;
            c.f.adv_edge = s.seq.add(2 * MSS);
            s
        },
    ];
    for kind in kinds {
        let mut c = bulk_held();
        let s = c.data(next(&c), MSS);
        let s = kind(&mut c, s);
        assert_eq!(keep(&mut c, &s), Kept::Ack);
    }
}

#[test]
fn a_sender_that_has_waited_for_an_ack_gets_one_for_each_segment() {
    let mut c = bulk_held();
    let s = c.data(next(&c), MSS);
    assert_eq!(keep(&mut c, &s), Kept::Wait);
    // It has heard nothing for its timeout.
    let (verdict, out) = c.not_kept(&s);
    assert_eq!((verdict, out.ack.ack), (Verdict::Reack, s.seq.add(MSS)));
    for _ in 0..2 * LONG_RAMP {
        c.held(&c.data(next(&c), MSS));
    }
}

#[test]
fn after_a_segment_that_came_again_each_that_waits_is_acknowledged_for_long() {
    let mut c = bulk_held();
    c.not_kept(&c.data(next(&c) - MSS, MSS));
    for _ in 1..LONG_RAMP {
        c.held(&c.data(next(&c), MSS));
    }
    let s = c.data(next(&c), MSS);
    assert_eq!(keep(&mut c, &s), Kept::Wait);
}

#[test]
fn what_fills_a_hole_is_acknowledged_at_once() {
    let mut c = bulk_held();
    let hole = next(&c);
    c.held(&c.data(hole + MSS, MSS));
    // A burst was lost, and has come again but for this segment.
    c.f.ramp = LONG_RAMP as u8;
    let out = c.held(&c.data(hole, MSS));
    assert_eq!(out.ack.ack, at(hole + 2 * MSS));
    assert_eq!(c.h.unanswered, 0);
}

#[test]
fn a_sender_that_keeps_back_a_rest_until_all_is_acknowledged_gets_each_ack() {
    let mut c = bulk_held();
    let s = c.data(next(&c), MSS);
    assert_eq!(keep(&mut c, &s), Kept::Wait);
    // The VM's own ACK came after its turn (Nagle's algorithm, RFC 896).
    c.now += 30 * MS;
    c.held(&segment { len: 100, unit_len: 100, ..c.data(next(&c), MSS) });
    for _ in 0..4 {
        c.held(&c.data(next(&c), MSS));
    }
}

#[test]
fn after_a_timeout_of_the_sender_each_is_acknowledged_for_long() {
    let mut c = bulk_held();
    c.now += 200 * MS;
    for _ in RAMP + 1..LONG_RAMP {
        c.held(&c.data(next(&c), MSS));
    }
    let s = c.data(next(&c), MSS);
    assert_eq!(keep(&mut c, &s), Kept::Wait);
}
