//! Connections that the splitter leaves to the helper, because their VM is gone.

use vsnoop_flow::types::{flow_mode, split_ask};

use crate::scene::{Scene, at};

/// A detach that finds no entry any more sends RSTs for the records that are in RESET.
#[test]
fn the_record_of_a_left_connection_is_in_reset_before_its_entry_goes() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.hooks.split.sent_end = at(5_000);
    scene.leave_all();
    let [(ask, record)] = scene.hooks.changes[..] else { panic!("{:?}", scene.hooks.changes) };
    assert_eq!(ask, split_ask::SPLIT_END);
    assert_eq!(u32::from(record.mode), flow_mode::FLOW_RESET);
    assert_eq!(record.snd_nxt, at(5_000), "the SEQ that its peer expects");
}

#[test]
fn what_leaves_until_the_entry_goes_counts_for_the_rst() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.hooks.split.sent_end = at(5_000);
    scene.hooks.leaves_before_end = 1_448;
    scene.leave_all();
    let record = scene.hooks.record;
    assert_eq!(u32::from(record.mode), flow_mode::FLOW_RESET);
    assert_eq!(record.snd_nxt, at(6_448));
}

#[test]
fn a_connection_with_nothing_on_its_way_is_not_reset() {
    let mut scene = Scene::at_rest();
    scene.leave_all();
    assert_ne!(u32::from(scene.hooks.record.mode), flow_mode::FLOW_RESET);
    assert!(scene.hooks.is_deleted);
}
