//! Collects the frames of one read of a connection, so that segments of a flow become one
//! super-packet.
//!
//! After a loss on the path, TCP delivers everything behind it at once. In small frames each would
//! cost the guest work and an ACK, and many ACKs that were delayed alike make a sender leave slow
//! start (HyStart, RFC 9406) long before the link is full.

use std::ops::Range;

use crate::frames::frame::{Origin, ReceivedFrame};
use vsnoop_link::slots::PeerSlot;
use vsnoop_link::wire::item::Way;
use vsnoop_packet::offload::state::OffloadState;

/// A larger frame is not copied, but passed on where it lies.
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
    /// Copies a frame. Returns `false` if it is too large, or if there is no room until
    /// [`Self::clear`].
    pub fn keep_frame(&mut self, offload: OffloadState, way: Way, frame: &[u8]) -> bool {
        let begin = self.bytes.len();
        if frame.len() > SMALL_BYTES || begin + frame.len() > MOST_BYTES {
            return false;
        }
        self.bytes.extend_from_slice(frame);
        self.frames.push(GatheredFrame { way, offload, range: begin..self.bytes.len() });
        true
    }

    /// The frames of `peer`, in the order in which they came.
    pub fn frames(&self, peer: PeerSlot) -> impl Iterator<Item = ReceivedFrame<'_>> {
        self.frames.iter().map(move |frame| ReceivedFrame {
            origin: Origin { peer, way: frame.way, behind: None },
            offload: frame.offload,
            bytes: &self.bytes[frame.range.clone()],
        })
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }
}
