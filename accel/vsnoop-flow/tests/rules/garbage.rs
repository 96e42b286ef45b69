//! A segment that the VM would refuse changes nothing.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{flow, segment, types::*};

use crate::case::*;

/// Segments with all flags and options that could take a flow offline, to BYPASS or to its end.
fn loaded(s: segment) -> Vec<segment> {
    let s = segment { window: 3, tsval: s.tsval.wrapping_add(1 << 20), ..s };
    let foreign = segment { bits: s.bits | SEG_FOREIGN as u16, ..s };
    let mark = segment { bits: s.bits | SEG_CE as u16, ..s };
    let large = segment { len: 9_000, unit_len: 9_000, ..s };
    let empty = segment { len: 0, unit_len: 0, ..s };
    let mut all = vec![s, foreign, mark, large, empty];
    all.extend([empty, foreign, s].map(|s| segment { tcp_flags: ACK | FIN, ..s }));
    all.extend([s, foreign].map(|s| segment { tcp_flags: ACK | URG, ..s }));
    all
}

/// Segments that the VM refuses, for a connection whose scale is known or not.
fn refused(c: &FlowCase) -> Vec<segment> {
    let next = c.f.next_seq.diff(at(0)) as u32;
    let edge = c.f.adv_edge.diff(at(0)).max(c.f.right_edge.diff(at(0))) as u32;
    let edge = if c.has(FLOW_F_SCALE_KNOWN) { edge } else { 1 << 30 };
    let mut all = Vec::new();
    for seq in [edge + 1 + next, edge + (1 << 29), edge + MSS * 100] {
        all.extend(loaded(c.data(seq, MSS)));
        // With what would be a new ACK of the VM's data.
        all.extend(loaded(segment { ack: c.f.snd_nxt, ..c.data(seq, MSS) }));
    }
    for seq in [next, next + 10, next.saturating_sub(10)] {
        for ack in [vm_at(51), vm_at(1 << 30), vm_at(0u32.wrapping_sub((1 << 30) + 1))] {
            all.extend(loaded(segment { ack, ..c.data(seq, MSS) }));
        }
    }
    all
}

/// The record, without the flags that let an answer of the VM pass, and its time.
fn state(f: &flow) -> flow {
    let replies = (FLOW_F_CHALLENGE_DUE | FLOW_F_REPLY_DUE) as u16;
    flow { flags: f.flags & !replies, last_ns: 0, reacked: 0, ..*f }
}

#[track_caller]
fn changes_nothing(case: &FlowCase, s: &segment) {
    let mut c = case.clone();
    c.wait(100 * MS);
    let before = c.clone();
    let (verdict, out) = c.not_kept(s);
    assert_eq!(state(&c.f), state(&before.f), "{s:?}");
    assert_eq!(c.h, before.h, "{s:?}");
    let quiet = EVENT_PASSIVE | EVENT_LATE;
    assert_eq!(out.events & !quiet, 0, "{s:?}");
    // An answer resynchronises a real sender: the VM's, or the host's while it holds bytes.
    if verdict == Verdict::Reack {
        assert_eq!(c.mode(), flow_mode::FLOW_HOLDING);
        assert_ne!(s.len, 0, "answers answer each other: {s:?}");
        assert_eq!((out.ack.seq, out.ack.ack), (c.f.snd_nxt, c.f.next_seq), "{s:?}");
    } else {
        assert!(matches!(verdict, Verdict::Pass | Verdict::Drop), "{verdict:?} {s:?}");
    }
}

/// The VM has sent 50 bytes.
fn spoken(mut c: FlowCase) -> FlowCase {
    c.hear(&c.data_of_vm(0, 50, c.f.vm_seq.diff(at(0)) as u32));
    c
}

#[test]
fn a_segment_that_the_vm_refuses_changes_no_state() {
    let mut offline = FlowCase::accepted().without_hold();
    offline.pass(&offline.data(MSS, MSS));
    let mut outstanding = FlowCase::accepted();
    outstanding.early(&outstanding.data(0, 3 * MSS));
    for case in [
        FlowCase::accepted(),
        FlowCase::opened(),
        FlowCase::mid_flow(),
        FlowCase::accepted().without_hold(),
        FlowCase::mid_flow().without_hold(),
        FlowCase::unconfirmed(),
        outstanding,
        offline,
        FlowCase::full(),
        FlowCase::holding(),
    ] {
        let case = spoken(case);
        for s in refused(&case) {
            changes_nothing(&case, &s);
        }
    }
}

#[test]
fn a_segment_that_the_vm_refuses_is_answered_by_the_vm() {
    for mut c in FlowCase::both() {
        c.early(&c.data(0, 2 * MSS));
        c.pass(&c.data(FULL + 10_000_000, MSS));
        let (verdict, _) = c.acks(MSS, c.window_at(MSS));
        assert_ne!(verdict, vsnoop_flow::FromVm::Drop);
    }
}

#[test]
fn an_old_segment_ends_nothing_and_puts_nothing_in_bypass() {
    for case in FlowCase::both() {
        let mut case = case;
        case.early(&case.data(0, 10_000));
        case.acks(10_000, WINDOW);
        for s in loaded(case.data(10_000 - 9_001, 1_000)) {
            let mut c = case.clone();
            c.not_kept(&s);
            assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE, "{s:?}");
            assert!(!c.has(FLOW_F_FIN_SENDER) && !c.has(FLOW_F_FOREIGN), "{s:?}");
        }
    }
}
