//! How the engine reads a hold, whatever is in it.

use vsnoop_flow::types::HOLD_FIN;
use vsnoop_hold::View;

use crate::case::*;

#[test]
fn what_was_handed_over_is_what_the_hooks_know_or_the_engine_has_done_since() {
    let mut h = held(1_000, 9_000, 20_000);
    for (high, by_engine, handed) in [
        (1_000, 1_000, 1_000),
        (1_000, 5_000, 5_000),
        (1_000, 9_000, 9_000),
        // Old: from before the hooks handed over by themselves for a while.
        (5_000, 1_000, 5_000),
        // Older: beyond the end, or wrapped.
        (1_000, 9_001, 1_000),
        (1_000, 1 << 30, 1_000),
        (1_000, 3 << 30, 1_000),
    ] {
        (h.high_seq, h.handed) = (at(high), at(by_engine));
        assert_eq!(View::new(&h).handed, at(handed), "{high} {by_engine}");
    }
}

#[test]
fn the_fin_counts_as_one_more() {
    let mut h = held(9_000, 9_000, 20_000);
    h.handed = at(9_001);
    assert_eq!(View::new(&h).handed, at(9_000), "there is no FIN");
    h.flags = HOLD_FIN as u16;
    h.fin_at = at(9_000);
    let view = View::new(&h);
    assert_eq!((view.handed, view.end()), (at(9_001), at(9_001)));
    assert!(view.is_all_handed() && !view.is_done());
    h.vm_seq = at(9_000);
    assert!(!View::new(&h).is_done());
    h.vm_seq = at(9_001);
    assert!(View::new(&h).is_done());
    h.handed = at(9_000);
    assert!(View::new(&h).is_all_handed(), "acknowledged, though nobody noted that it was sent");
}

#[test]
fn a_fin_that_is_read_before_the_bytes_below_it_ends_nothing() {
    // The hooks keep the last bytes and their FIN in one step. The engine reads word by word.
    let mut h = held(9_000, 9_000, 20_000);
    (h.flags, h.fin_at) = (HOLD_FIN as u16, at(9_264));
    assert_eq!(View::new(&h).end(), at(9_000));
    h.tail = at(9_264);
    assert_eq!(View::new(&h).end(), at(9_265));
}

#[test]
fn a_vm_may_acknowledge_what_a_killed_engine_had_not_noted() {
    let mut h = held(1_000, 9_000, 20_000);
    h.vm_seq = at(4_000);
    assert_eq!(View::new(&h).handed, at(4_000));
}

#[test]
fn a_hold_that_is_all_handed_is_done_when_the_vm_has_acknowledged_it() {
    let view = View::new(&held(8_999, 9_000, 20_000));
    assert!(!view.is_all_handed() && !view.is_done());
    let mut h = held(9_000, 9_000, 20_000);
    assert!(View::new(&h).is_all_handed() && !View::new(&h).is_done());
    h.vm_seq = at(9_000);
    assert!(View::new(&h).is_done());
}

#[test]
fn bogus_sack_blocks_are_not_believed() {
    let mut c = HoldCase::new(held(5_000, 9_000, 20_000));
    c.h.vm_seq = at(1_000);
    c.sacks(&[(0, 500), (1_000, 2_000), (3_000, 3_000), (4_000, 5_001)]);
    assert!(c.view().blocks().is_empty(), "{:?}", c.view().blocks());
    c.sacks(&[(4_000, 3_000), (3 << 30, 2_000), (500, 2_000), (2_000, 5_000)]);
    assert_eq!(c.view().blocks(), [(at(2_000), at(5_000))]);
    // More than there is room for.
    c.h.sack_count = u32::MAX;
    assert_eq!(c.view().blocks().len(), 1);
}

#[test]
fn sack_blocks_come_in_order() {
    let mut c = HoldCase::new(held(9_000, 9_000, 20_000));
    c.sacks(&[(7_000, 8_000), (1_000, 2_000), (3_000, 3_500), (5_000, 6_000)]);
    let starts: Vec<_> = c.view().blocks().iter().map(|block| block.0.diff(at(0))).collect();
    assert_eq!(starts, [1_000, 3_000, 5_000, 7_000]);
}

#[test]
fn a_segment_has_at_least_a_byte() {
    let mut h = held(0, 10, 20);
    h.mss = 0;
    assert_eq!(HoldCase::new(h).send_all(), [handover(0, 10)]);
}

#[test]
fn a_hold_without_memory_is_done() {
    // The VM has acknowledged segments without copies, beyond the end of the last copies.
    let mut h = held(9_000, 5_000, 20_000);
    (h.chunks, h.vm_seq) = (0, at(9_000));
    assert!(View::new(&h).is_done());
}

#[test]
fn copies_reach_back_to_the_first_that_was_kept() {
    let mut h = held(5_000, 9_000, 20_000);
    assert!(View::new(&h).is_kept());
    h.first = at(1);
    assert!(!View::new(&h).is_kept());
    h.vm_seq = at(1);
    assert!(View::new(&h).is_kept());
}
