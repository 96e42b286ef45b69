//! Frames that came together over a connection, kept until all of them are there, so that segments
//! of a flow can become one super-packet.
//!
//! After a loss outside, everything behind it arrives at once. Given to a guest in small pieces,
//! each of them is work and an acknowledgement, and the many acknowledgements that tell of one
//! delay make a sender leave slow start (HyStart, RFC 9406) long before the link is full.

use std::ops::Range;

use crate::frame::{Origin, ReceivedFrame};
use vsnoop_link::wire::item::Way;
use vsnoop_packet::offload::state::OffloadState;

/// A larger frame is worth its own way: it is handed on where it lies.
const SMALL_BYTES: usize = 48 << 10;
/// Most bytes that are kept: a few super-packets.
const MOST_BYTES: usize = 512 << 10;

#[derive(Default)]
pub struct Gather {
    bytes: Vec<u8>,
    frames: Vec<GatheredFrame>,
}

struct GatheredFrame {
    way: Way,
    offload: OffloadState,
    range: Range<usize>,
}

impl Gather {
    /// Keeps a frame; `false`: it is too large, or there is no room until [`Self::clear`].
    pub fn keep(&mut self, offload: OffloadState, way: Way, frame: &[u8]) -> bool {
        let begin = self.bytes.len();
        if frame.len() > SMALL_BYTES || begin + frame.len() > MOST_BYTES {
            return false;
        }
        self.bytes.extend_from_slice(frame);
        self.frames.push(GatheredFrame { way, offload, range: begin..self.bytes.len() });
        true
    }

    /// As frames of `peer`, in the order in which they came.
    pub fn frames(&self, peer: usize) -> impl Iterator<Item = ReceivedFrame<'_>> {
        self.frames.iter().map(move |frame| ReceivedFrame {
            origin: Origin { peer, way: frame.way },
            offload: frame.offload,
            bytes: &self.bytes[frame.range.clone()],
        })
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }
}
