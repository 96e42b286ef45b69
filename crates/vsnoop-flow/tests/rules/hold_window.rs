//! With a hold: how far the sender's window grows beyond the VM's.

use vsnoop_flow::hold::Verdict;
use vsnoop_flow::{FromVm, types::*};

use crate::case::*;
use crate::hold_case::*;

const UNIT: i32 = 1 << SCALE;

/// Up to a unit of the scale.
#[track_caller]
fn about(edge: i32, expected: u32) {
    assert!((edge - expected as i32).abs() < UNIT, "the edge {edge} is not about {expected}");
}

#[test]
fn the_window_grows_by_two_bytes_for_each_byte_acknowledged() {
    let mut c = Held::new();
    let out = c.early(&c.data(0, MSS));
    about(c.edge(&out), FULL + 2 * MSS);
    let out = c.early(&c.data(MSS, MSS));
    about(c.edge(&out), FULL + 5 * MSS);
    // Held or handed over makes no difference.
    let mut c = Held::full();
    let before = c.h.rcv_win;
    c.held(&c.data(FULL, 10 * MSS));
    assert_eq!(c.h.rcv_win, before + 20 * MSS);
}

#[test]
fn it_begins_with_the_vms_own_window() {
    let mut c = Held::new();
    c.early(&c.data(0, MSS));
    assert_eq!(c.h.rcv_win, FULL - MSS + 2 * MSS);
}

#[test]
fn a_flow_has_no_more_than_its_bound() {
    let mut c = Held::new();
    c.policy.hold_flow = FULL + 10 * MSS;
    let mut out = c.early(&c.data(0, FULL));
    assert!(c.edge(&out) <= (FULL + 10 * MSS) as i32 + UNIT);
    for i in 0..10 {
        out = c.held(&c.data(FULL + i * MSS, MSS));
        assert!(c.edge(&out) <= (FULL + 10 * MSS) as i32 + UNIT, "{}", c.edge(&out));
    }
    about(c.edge(&out), FULL + 10 * MSS);
    assert_eq!(out.ack.window, 0, "the bound is reached: the window closes");
    assert_eq!(c.not_kept(&c.data(FULL + 10 * MSS, MSS)).0, Verdict::Reack);
}

#[test]
fn the_bound_counts_within_the_vms_window_too() {
    let mut c = Held::new();
    c.policy.hold_flow = 10 * MSS;
    for i in 0..10 {
        c.early(&c.data(i * MSS, MSS));
    }
    // Passed to the VM without a copy, and so not acknowledged for it.
    let (verdict, out) = c.not_kept(&c.data(10 * MSS, MSS));
    assert_eq!((verdict, c.mode()), (Verdict::Pass, flow_mode::FLOW_NO_BUF));
    assert_ne!(out.events & EVENT_OFFLINE_NO_BUF, 0);
    assert_eq!(c.f.high_seq, at(11 * MSS));
}

#[test]
fn the_more_of_the_pool_is_taken_the_less_one_flow_gets() {
    let mut c = Held::full();
    c.port.chunks_used = CHUNKS - 5;
    // Four fifths of what is free and what it has itself, from VM_SEQ on.
    let share = |own: u32| (5 * HOLD_CHUNK + own) * 4 / 5;
    let out = c.held(&c.data(FULL, MSS));
    about(c.edge(&out), share(FULL + MSS).max(c.f.adv_edge.diff(at(0)) as u32));
    let mut c = Held::new();
    c.port.chunks_used = CHUNKS - 5;
    let out = c.early(&c.data(0, 20 * MSS));
    about(c.edge(&out), share(20 * MSS).max(FULL));
    let mut c = Held::new();
    c.port.chunks_used = CHUNKS - 1;
    let out = c.early(&c.data(0, 20 * MSS));
    about(c.edge(&out), FULL);
    c.port.chunks_used = CHUNKS;
    let out = c.early(&c.data(20 * MSS, MSS));
    about(c.edge(&out), FULL);
}

#[test]
fn an_edge_that_was_shown_is_not_taken_back() {
    let mut c = Held::full();
    let out = c.held(&c.data(FULL, 10 * MSS));
    let edge = c.edge(&out);
    // Neither when the pool fills, nor when the port is paused, nor when the VM's window shrinks.
    c.port.chunks_used = CHUNKS;
    let (_, out) = c.not_kept(&c.data(0, MSS));
    about(c.edge(&out), edge as u32);
    c.policy.run = port_run::PORT_PAUSED;
    let (_, out) = c.not_kept(&c.data(0, MSS));
    about(c.edge(&out), edge as u32);
    let (verdict, out) = c.acks(FULL / 2, 1);
    assert_ne!(verdict, FromVm::Pass);
    if verdict == FromVm::Rewrite {
        about(c.edge(&out), edge as u32);
    }
    assert_eq!(c.f.adv_edge.diff(at(0)), edge);
}

#[test]
fn a_prompt_vm_needs_no_larger_window() {
    let mut c = Held::new();
    c.port.prompt_until_ns = c.now + MS;
    c.early(&c.data(0, MSS));
    assert_eq!(c.h.rcv_win, 0);
    c.port.prompt_until_ns = 0;
    c.early(&c.data(MSS, MSS));
    assert_ne!(c.h.rcv_win, 0);
}

#[test]
fn without_an_engine_nothing_beyond_the_vms_window_is_acknowledged() {
    let mut c = Held::full();
    let shown = c.f.adv_edge;
    assert!(shown.diff(c.f.right_edge) > MSS as i32);
    c.now = c.port.engine_ns + HOLD_STALE - 1;
    assert!(matches!(c.clone().decide(&c.data(FULL, MSS)).0, Verdict::Keep { .. }));
    c.now += 1;
    assert_eq!(c.not_kept(&c.data(FULL, MSS)).0, Verdict::Pass, "the VM is asked");
    assert_eq!(c.h.rcv_win, 0);
    assert_eq!(c.f.adv_edge, shown, "what was shown stays");
}

#[test]
fn without_an_engine_what_fits_is_copied_and_handed_over_as_ever() {
    let mut c = Held::new();
    c.now += 10 * HOLD_STALE;
    let out = c.early(&c.data(0, MSS));
    about(c.edge(&out), FULL);
    assert_eq!(c.h.rcv_win, 0);
}

#[test]
fn an_engine_that_dies_while_a_segment_is_copied_is_not_relied_upon() {
    let mut c = Held::full();
    let s = c.data(FULL, MSS);
    assert!(matches!(c.decide(&s).0, Verdict::Keep { .. }));
    c.now = c.port.engine_ns + HOLD_STALE;
    let (kept, _) = c.after_copy(&s, true, false);
    assert_eq!(kept, vsnoop_flow::hold::Kept::Pass);
    assert_eq!(c.f.next_seq, at(FULL));
}

#[test]
fn a_flow_whose_scale_is_unknown_gets_no_more_than_the_vms_window() {
    let mut c = Held::of(Case::mid_flow());
    let window = u32::from(WINDOW);
    c.early(&c.data(1, window / 2));
    assert_eq!(c.h.rcv_win, 0);
    let rest = window - window / 2;
    c.early(&c.data(1 + window / 2, rest));
    assert_eq!(c.not_kept(&c.data(1 + window, 100)).0, Verdict::Pass);
}

/// The VM has closed its window, and the sender knows.
fn closed() -> Held {
    let mut c = Held::new();
    c.port.prompt_until_ns = c.now + MS;
    c.early(&c.data(0, FULL));
    c.acks(FULL, 0);
    c.port.prompt_until_ns = 0;
    assert_eq!((c.h.rcv_win, c.f.adv_edge), (0, at(FULL)));
    c
}

#[test]
fn a_sender_that_asks_for_a_closed_window_is_given_one_of_the_hold() {
    let mut c = closed();
    let (verdict, out) = c.not_kept(&c.ack_of_sender(FULL - 1, 0));
    assert_eq!(verdict, Verdict::Reack);
    about(c.edge(&out), FULL + 2 * MSS);
    c.held(&c.data(FULL, MSS));
}

#[test]
fn the_vm_answers_for_its_window_where_the_hold_has_none() {
    for spoil in [
        |c: &mut Held| c.now += HOLD_STALE,
        |c: &mut Held| c.policy.run = port_run::PORT_PAUSED,
        // It has room.
        |c: &mut Held| {
            c.acks(FULL, WINDOW);
        },
    ] {
        let mut c = closed();
        spoil(&mut c);
        assert_eq!(c.not_kept(&c.ack_of_sender(FULL - 1, 0)).0, Verdict::Pass);
        assert_eq!(c.h.rcv_win, 0);
    }
    // And no ACK of the sender is taken for a question.
    let mut c = closed();
    assert_eq!(c.not_kept(&c.ack_of_sender(FULL, 0)).0, Verdict::Pass);
}

/// HOLD_STALE_NS.
const HOLD_STALE: u64 = 1_000 * MS;
