//! Connections that the splitter resets.

use vsnoop_flow::types::flow_mode;

use crate::scene::Scene;

/// The VM may have lost the RST, and send nothing: the helper probes it while the record is there.
#[test]
fn the_record_of_a_connection_whose_peer_is_silent_is_in_reset() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.lose_the_peer();
    assert_eq!(u32::from(scene.hooks.record.mode), flow_mode::FLOW_RESET);
    assert!(!scene.hooks.is_deleted);
}
