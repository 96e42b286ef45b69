//! Decodes what a hostile hub or peer says in an introduction: the decoded message keeps to the
//! bounds, and means the same after it has been encoded again.
//!
//!     cargo +nightly fuzz run link_introduction
#![no_main]

use vsnoop_link::introduction::{Hub, HubMessage, LARGEST_BYTES, Label, MOST_LABELS, Question};
use vsnoop_link::slots::PeerSlot;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut hub = Hub::default();
    let address = |peer: u8| ([192, 0, 2, peer], 7757).into();
    (0..4).for_each(|peer| drop(hub.note_up(PeerSlot(peer.into()), address(peer), 0)));
    for (at, bytes) in input.split(|byte| *byte == 0xff).enumerate() {
        let Some(message) = HubMessage::decode(bytes) else { continue };
        let encoded = message.encode();
        assert!(encoded.len() <= LARGEST_BYTES);
        assert_eq!(HubMessage::decode(&encoded).as_ref(), Some(&message));
        let (from, now_ns) = (PeerSlot((at % 4) as u16), at as u64 * 1_000_000);
        let is_bounded = |label: Label| (1..=MOST_LABELS).contains(&label.number());
        match message {
            HubMessage::Ask { label, keep_s, .. }
            | HubMessage::Known { label, kept_s: keep_s, .. } => {
                assert!(is_bounded(label));
                // To the peers there are, to itself, and to one that the hub does not have.
                let about = PeerSlot(label.number() % 5);
                let about = (about < PeerSlot(4)).then_some(about);
                let question = Question { label, about, keep_s };
                assert!(hub.handle_question(from, question, now_ns).len() < 10);
            }
            HubMessage::ToPeer(piece) | HubMessage::FromPeer(piece) => {
                if let Some(passed) = hub.pass_on(from, piece, now_ns) {
                    assert_ne!(passed.to, from);
                }
            }
        }
    }
});
