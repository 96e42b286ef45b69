//! Out-of-order segments: kept, reported by SACK, acknowledged when the hole is filled.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, segment, types::*};

use crate::case::*;

const END: u32 = FULL + 2 * MSS;

/// The out-of-order ranges that an ACK reports.
fn ranges(c: &FlowCase) -> Vec<(i32, i32)> {
    let edges = c.h.ranges.chunks_exact(2).take(c.h.range_count as usize);
    edges.map(|edges| (edges[0].diff(at(END)), edges[1].diff(at(END)))).collect()
}

/// A segment that begins `gap` bytes beyond the end of the held bytes.
fn beyond(c: &mut FlowCase, offset: u32, len: u32) {
    let next = c.f.next_seq;
    let out = c.held(&c.data(END + offset, len));
    assert_eq!(
        (c.f.next_seq, c.h.tail, out.ack.ack),
        (next, next, next),
        "it is no part of the stream"
    );
    assert_ne!(out.events & EVENT_OUT_OF_ORDER, 0);
    assert_eq!(out.ack.sack, NUMBER, "the ACK reports it");
}

#[test]
fn data_beyond_a_hole_are_kept_and_reported_by_sack() {
    let mut c = FlowCase::holding();
    beyond(&mut c, MSS, MSS);
    assert_eq!(ranges(&c), [(MSS as i32, 2 * MSS as i32)]);
}

#[test]
fn a_hole_is_kept_for_an_active_flow_too() {
    let mut c = FlowCase::new();
    let out = c.held(&c.data(MSS, MSS));
    assert_eq!((out.ack.ack, c.f.high_seq), (at(0), at(0)));
    assert_eq!(c.h.since_ns, c.now);
    // The flow is held until the hole is filled.
    c.engine_hands_over(0);
    c.held(&c.data(3 * MSS, MSS));
}

#[test]
fn no_sack_is_sent_for_a_vm_without_sack() {
    let mut c = FlowCase::plain().unbounded();
    let out = c.held(&c.data(MSS, MSS));
    assert_eq!(out.ack.sack, 0);
}

#[test]
fn a_filled_hole_acknowledges_what_follows_it() {
    let mut c = FlowCase::holding();
    beyond(&mut c, MSS, MSS);
    beyond(&mut c, 3 * MSS, MSS);
    let out = c.held(&c.data(END, MSS));
    assert_eq!((out.ack.ack, c.h.tail), (at(END + 2 * MSS), at(END + 2 * MSS)));
    assert_eq!((ranges(&c), out.ack.sack), (vec![(3 * MSS as i32, 4 * MSS as i32)], NUMBER));
    let out = c.held(&c.data(END + 2 * MSS, MSS));
    assert_eq!((out.ack.ack, out.ack.sack), (at(END + 4 * MSS), 0));
    assert!(ranges(&c).is_empty());
}

#[test]
fn one_segment_may_fill_several_holes() {
    let mut c = FlowCase::holding();
    for i in [4, 2, 6] {
        beyond(&mut c, i * 100, 100);
    }
    let out = c.held(&c.data(END, 650));
    assert_eq!(out.ack.ack, at(END + 700));
    assert!(ranges(&c).is_empty());
}

#[test]
fn ranges_that_touch_become_one_the_latest_first() {
    let mut c = FlowCase::holding();
    beyond(&mut c, 100, 100);
    beyond(&mut c, 400, 100);
    assert_eq!(ranges(&c), [(400, 500), (100, 200)]);
    beyond(&mut c, 200, 50);
    assert_eq!(ranges(&c), [(100, 250), (400, 500)]);
    beyond(&mut c, 240, 300);
    assert_eq!(ranges(&c), [(100, 540)]);
    beyond(&mut c, 150, 10);
    assert_eq!(ranges(&c), [(100, 540)], "it was there");
}

#[test]
fn a_fifth_range_is_not_reported() {
    let mut c = FlowCase::holding();
    for i in 0..4 {
        beyond(&mut c, 100 + 200 * i, 100);
    }
    let four = ranges(&c);
    assert_eq!(four, [(700, 800), (500, 600), (300, 400), (100, 200)]);
    c.held(&c.data(END + 900, 100));
    assert_eq!(ranges(&c), four);
    // One that joins two of them makes room.
    beyond(&mut c, 200, 100);
    assert_eq!(ranges(&c), [(100, 400), (700, 800), (500, 600)]);
    beyond(&mut c, 900, 100);
    assert_eq!(ranges(&c).len(), 4);
}

#[test]
fn nothing_is_kept_beyond_the_window() {
    let mut c = FlowCase::holding();
    let room = c.f.adv_edge.diff(at(END)) as u32;
    c.h.rcv_win = 0;
    let (verdict, out) = c.not_kept(&c.data(END + room - 100, MSS));
    assert_eq!((verdict, out.ack.ack), (Verdict::Reack, at(END)));
    assert!(ranges(&c).is_empty());
}

#[test]
fn a_flow_with_ranges_is_not_all_handed() {
    let mut c = FlowCase::holding();
    beyond(&mut c, MSS, MSS);
    c.acks(FULL, WINDOW);
    c.engine_hands_over(END);
    // In its window, and not handed over by the hooks: the ranges are beyond it.
    c.held(&c.data(END + 5 * MSS, MSS));
}

#[test]
fn ranges_are_dropped_when_port_or_engine_stops() {
    // The sender keeps SACKed data.
    for spoil in [
        |c: &mut FlowCase| c.now += 1_000 * MS,
        |c: &mut FlowCase| c.policy.run = port_run::PORT_PAUSED,
    ] {
        let mut c = FlowCase::holding();
        beyond(&mut c, MSS, MSS);
        spoil(&mut c);
        let (_, out) = c.not_kept(&c.data(END, 10));
        assert_eq!((out.ack.sack, ranges(&c)), (0, vec![]));
    }
}

/// Segments that only the VM can process.
fn not_to_be_kept(s: segment) -> [segment; 2] {
    let foreign = segment { bits: s.bits | SEG_FOREIGN as u16, ..s };
    [segment { tcp_flags: ACK | URG, ..s }, foreign]
}

#[test]
fn ranges_are_dropped_when_only_the_vm_can_fill_the_hole() {
    let active = FlowCase::new();
    for s in not_to_be_kept(active.data(0, MSS)) {
        // Only bytes beyond the hole wait.
        let mut c = active.clone();
        c.held(&c.data(MSS, MSS));
        assert_eq!(c.not_kept(&s).0, Verdict::Pass);
        assert_ne!(c.mode(), flow_mode::FLOW_HOLDING);
        assert_eq!((c.h.range_count, c.f.high_seq), (0, at(MSS)));
    }
    for s in not_to_be_kept(active.data(END - 10, 20)) {
        // Bytes before it wait: it comes again when the VM has them.
        let mut c = FlowCase::holding();
        beyond(&mut c, MSS, MSS);
        assert_eq!(c.not_kept(&s).0, Verdict::Drop);
        assert!(ranges(&c).is_empty());
        c.acks(FULL, WINDOW);
        c.engine_hands_over(END);
        assert_eq!(c.not_kept(&s).0, Verdict::Pass);
        assert_eq!(c.f.high_seq, at(END + 10));
    }
}

#[test]
fn ranges_stay_if_an_urgent_segment_does_not_fill_the_first_hole() {
    for (offset, len) in [(END - 20, 20), (END + 1, 50), (END + 3 * MSS, MSS)] {
        for s in not_to_be_kept(FlowCase::holding().data(offset, len)) {
            let mut c = FlowCase::holding();
            beyond(&mut c, MSS, MSS);
            assert_eq!(c.not_kept(&s).0, Verdict::Drop);
            assert_eq!(ranges(&c).len(), 1, "{offset}");
        }
    }
}

#[test]
fn a_range_alone_without_an_engine_resets_no_flow() {
    let mut c = FlowCase::new();
    c.held(&c.data(MSS, MSS));
    c.now += 10_000 * MS;
    assert_ne!(c.decide(&c.data(MSS, MSS)).0, Verdict::Reset);
    assert_eq!(c.f.next_seq, at(0));
}

#[test]
fn the_time_that_bytes_wait_begins_when_the_hole_is_filled() {
    let mut c = FlowCase::new();
    c.held(&c.data(MSS, MSS));
    c.wait(3_000 * MS);
    c.held(&c.data(0, MSS));
    assert_eq!(c.h.since_ns, c.now);
}

#[test]
fn the_tsval_of_a_range_is_not_ts_recent() {
    let mut c = FlowCase::holding();
    let recent = c.f.ts_recent;
    c.ts = c.ts.wrapping_add(50);
    beyond(&mut c, MSS, MSS);
    assert_eq!(c.f.ts_recent, recent, "what comes with an older one is acceptable (RFC 7323, 4.3)");
    c.held(&segment { tsval: recent, ..c.data(END, MSS) });
}

#[test]
fn the_vms_own_ack_may_fill_a_hole() {
    // The VM got the byte in between; copies continue behind it.
    let mut c = FlowCase::holding();
    beyond(&mut c, 1, 500);
    c.engine_hands_over(END);
    let filled = c.clone();
    let (_, out) = c.acks(END + 1, WINDOW);
    assert_eq!((c.f.next_seq, c.h.tail), (at(END + 501), at(END + 501)));
    assert_eq!(out.ack.ack, at(END + 501), "the sender is told at once");
    assert!(ranges(&c).is_empty());
    // Also where it is shown no more window than before.
    let mut c = filled;
    let (verdict, out) = c.acks(END + 1, 0);
    assert_eq!((verdict, out.ack.ack), (FromVm::Rewrite, at(END + 501)));
    assert_eq!(c.acks(END + 1, 0).0, FromVm::Drop, "it knows by now");
}

#[test]
fn ranges_beyond_a_fin_are_dropped() {
    for len in [0, 100] {
        let mut c = FlowCase::holding();
        beyond(&mut c, 500, 100);
        let s = segment { tcp_flags: ACK | FIN, ..c.data(END, len) };
        if len == 0 {
            assert_eq!(c.not_kept(&s).0, Verdict::Drop);
        } else {
            c.held(&s);
        }
        assert!(c.holds(HOLD_FIN) && ranges(&c).is_empty());
        // Everything is handed over with the FIN.
        c.acks(FULL, WINDOW);
        c.engine_hands_over(END + len + 1);
        c.acks(END + len, WINDOW);
        assert_eq!(c.mode(), flow_mode::FLOW_UNEXPECTED_SEQ);
    }
}

#[test]
fn what_the_host_has_and_gets_again_is_reported() {
    let again = |c: &mut FlowCase, s: segment| {
        let (verdict, out) = c.not_kept(&s);
        assert_eq!(verdict, Verdict::Reack);
        u32::from(out.ack.repeated)
    };
    let mut handed = FlowCase::new();
    handed.early(&handed.data(0, 2 * MSS));
    let mut held = FlowCase::holding();
    for c in [&mut handed, &mut held] {
        let last = c.f.next_seq.diff(at(0)) as u32 - MSS;
        assert_eq!(again(c, c.data(last, MSS)), MSS);
        // A keep-alive with a byte (RFC 9293, section 3.8.4).
        assert_eq!(again(c, c.data(last + MSS - 1, 1)), 1);
        c.f.flags &= !FLOW_F_SACK as u16;
        assert_eq!(again(c, c.data(last, MSS)), 0, "SACK is not permitted");
    }
    let mut c = FlowCase::holding();
    let next = c.f.next_seq.diff(at(0)) as u32;
    let probe = c.ack_of_sender(next - 1, 0);
    assert_eq!(again(&mut c, probe), 0, "it has no byte");
    assert_eq!(c.held(&c.data(next, MSS)).ack.repeated, 0, "it is new");
}

#[test]
fn what_is_kept_beyond_a_hole_and_comes_again_is_reported() {
    let mut c = FlowCase::holding();
    let next = c.f.next_seq.diff(at(0)) as u32;
    let beyond = c.data(next + MSS, MSS);
    assert_eq!(c.held(&beyond).ack.repeated, 0);
    assert_eq!(u32::from(c.held(&beyond).ack.repeated), MSS);
    let more = c.data(next + 2 * MSS - 10, MSS);
    assert_eq!(c.held(&more).ack.repeated, 0, "it brings new bytes");
}
