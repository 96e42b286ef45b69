//! The stream of a peer: cut into items as it arrives in pieces, and each item
//! read as what it says it is. Items are those of the stream, in order, and mean the same after
//! having been written again. The input is a tape: lengths of pieces and the stream.
//!
//!     cargo +nightly fuzz run link_item
#![no_main]

use vsnoop_link::session::{Message, message};
use vsnoop_link::wire::item::{self, FrameHeader, Item, Way};
use vsnoop_link::wire::stream::{Cutter, LENGTH_BYTES, MAX_ITEM_BYTES};

libfuzzer_sys::fuzz_target!(|tape: &[u8]| {
    let Some((&[pieces, much], stream)) = tape.split_first_chunk() else { return };
    read(stream);
    cut(stream, 1 + usize::from(pieces));
    // Large items, which wrap around in the buffer.
    let large: Vec<u8> = stream.repeat(1 + usize::from(much) * 8);
    cut(&large, 1 + usize::from(pieces) * 509);
});

/// Cuts the stream into reads of at most `most` bytes.
fn cut(stream: &[u8], piece: usize) {
    let mut cutter = Cutter::default();
    let (mut given, mut taken) = (0, 0);
    loop {
        match cutter.cut_item() {
            Ok(Some(found)) => {
                let begin = taken + LENGTH_BYTES;
                taken = begin + found.len();
                assert_eq!(found, &stream[begin..taken]);
                assert!(found.len() <= MAX_ITEM_BYTES && taken <= given);
                read(found);
            }
            Ok(None) => {
                let space = cutter.free_space();
                let bytes = piece.min(space.len()).min(stream.len() - given);
                assert!(!space.is_empty());
                if bytes == 0 {
                    break;
                }
                space[..bytes].copy_from_slice(&stream[given..given + bytes]);
                given += bytes;
                cutter.note_filled(bytes);
            }
            Err(too_long) => {
                assert!(too_long.0 > MAX_ITEM_BYTES);
                return;
            }
        }
    }
    // All is there but an item that is not whole.
    assert!(stream.len() - taken < LENGTH_BYTES + MAX_ITEM_BYTES);
}

fn read(bytes: &[u8]) {
    let way = Way::read(bytes);
    let again = |header: &[u8], rest: &[u8]| [header, rest].concat();
    match Item::parse(bytes) {
        Some(Item::Frame(offload, frame)) => {
            let written = again(FrameHeader::new(offload, way).bytes(), frame);
            assert_eq!(Item::parse(&written), Some(Item::Frame(offload, frame)));
            assert!(offload.needs_checksum || offload.gso.is_none());
        }
        Some(Item::Fragment(offload, fragment, part)) => {
            let written = again(&item::fragment_header(offload, fragment, way), part);
            assert_eq!(Item::parse(&written), Some(Item::Fragment(offload, fragment, part)));
        }
        Some(Item::Unit { offload, offset, body }) => {
            let written = again(&item::unit_header(offload, offset, way), body);
            assert_eq!(Item::parse(&written), Some(Item::Unit { offload, offset, body }));
        }
        Some(Item::UnitPart(fragment, part)) => {
            assert_eq!(again(&item::unit_part_header(fragment), part), bytes);
        }
        Some(Item::Session(said)) => {
            if let Some(message) = Message::read(said) {
                let mut written = [0; message::LARGEST_BYTES];
                let length = message.write(&mut written).expect("room");
                assert_eq!(Message::read(&written[..length]), Some(message));
            }
        }
        Some(Item::Introduction(_) | Item::Compressed(_)) | None => {}
    }
    // The kind of an item must not keep what follows from being tried as a message.
    let _ = Message::read(bytes);
}
