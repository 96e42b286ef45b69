//! Another Ethernet address has announced the IP address of the VM.

use vsnoop_flow::types::{reset_reason, split_ask};

use crate::scene::Scene;

const S: u64 = 1_000_000_000;

/// Its ACK was on its way when the address was announced, or it had not learned of it yet.
#[test]
fn a_peer_that_is_heard_for_the_last_time_after_the_announcement_is_reset() {
    for heard_for_ns in [0, S / 10, 3 * S] {
        let mut scene = Scene::with_bytes_on_their_way();
        scene.take_the_address();
        scene.tick_for(15 * S, heard_for_ns);
        assert_eq!(scene.hooks.resets, [reset_reason::RESET_MOVED], "{heard_for_ns}");
    }
}

#[test]
fn a_peer_that_goes_on_is_not_reset() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.take_the_address();
    scene.tick_for(30 * S, u64::MAX);
    assert_eq!(scene.hooks.resets, []);
    let is_place = |(ask, _): &&(split_ask::Type, _)| *ask == split_ask::SPLIT_PLACE;
    assert_eq!(scene.hooks.changes.iter().filter(is_place).count(), 1, "it is at its tap");
}

/// A reader that stands still: the socket probes its window every two minutes at last.
#[test]
fn a_peer_that_was_sent_nothing_may_be_silent() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.take_the_address();
    scene.tick_in_silence(60 * S);
    assert_eq!(scene.hooks.resets, []);
    // The peer does not answer the next probe.
    scene.tick_for(60 * S + 2 * S, 0);
    assert_eq!(scene.hooks.resets, [reset_reason::RESET_MOVED]);
}

/// A peer without room answers probes of its window, which become rare.
#[test]
fn a_peer_is_asked_whether_it_is_there() {
    let mut scene = Scene::with_bytes_on_their_way();
    scene.take_the_address();
    scene.tick_for(5 * S, u64::MAX);
    assert!((4..=6).contains(&scene.asked()), "{}", scene.asked());
}
