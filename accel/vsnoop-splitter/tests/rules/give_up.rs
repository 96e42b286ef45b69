//! Connections that are reset for a reason that is counted.

use vsnoop_flow::types::flow_mode;

use crate::scene::{Scene, at, killed_amid_a_join};

/// The VM may have lost the RST, and send nothing: the helper probes it while the record is there.
#[test]
fn the_record_of_a_connection_whose_peer_is_silent_is_in_reset() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.hooks.split.sent_end = at(5_000);
    scene.lose_the_peer();
    let record = scene.hooks.record;
    assert_eq!(u32::from(record.mode), flow_mode::FLOW_RESET);
    assert_eq!(record.snd_nxt, at(5_000), "the SEQ that its peer expects");
    assert!(!scene.hooks.is_deleted);
}

/// The hooks have no entry, as of a connection that was joined.
#[test]
fn what_a_splitter_that_was_killed_amid_a_join_has_lost_is_in_reset() {
    let hooks = killed_amid_a_join();
    assert_eq!(u32::from(hooks.record.mode), flow_mode::FLOW_RESET);
}

/// A detach waits until no entry is left.
#[test]
fn the_entry_of_a_connection_that_was_reset_goes_with_its_port() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.reset_by_the_peer();
    scene.leave_all();
}
