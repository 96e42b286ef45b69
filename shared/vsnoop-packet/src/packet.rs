//! A frame with its `virtio_net_hdr`, in a buffer that is taken from a pool and goes back to it.
//!
//! Buffers are as large as the largest super-packet, so a packet never allocates while it is
//! handled.

use crate::checksum;
use crate::headers::Headers;
use crate::vnet::VirtioNetHdr;

/// The longest frame that a tap hands over: an IP packet of 64 KB, Ethernet, tags, and some room.
pub const MAX_FRAME_BYTES: usize = 65_535 + 14 + 64;

/// One frame, and the offloads left to do for it.
#[derive(Debug)]
pub struct Packet {
    pub header: VirtioNetHdr,
    bytes: Box<[u8]>,
    length: usize,
}

impl Packet {
    fn new() -> Self {
        Self {
            header: VirtioNetHdr::default(),
            bytes: vec![0; MAX_FRAME_BYTES].into_boxed_slice(),
            length: 0,
        }
    }

    /// The Ethernet frame.
    pub fn frame(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    /// The whole buffer, to be filled; [`set_length`](Self::set_length) follows.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The header and the whole buffer, for a read that fills both.
    pub fn parts_mut(&mut self) -> (&mut VirtioNetHdr, &mut [u8]) {
        (&mut self.header, &mut self.bytes)
    }

    /// Says how many bytes of the buffer are the frame; more than the buffer has are cut.
    pub fn set_length(&mut self, length_bytes: usize) {
        self.length = length_bytes.min(self.bytes.len());
    }

    /// Makes this the packet with this header and this frame.
    pub fn fill(&mut self, header: VirtioNetHdr, frame: &[u8]) {
        self.header = header;
        self.set_length(frame.len());
        let length = self.length;
        self.bytes[..length].copy_from_slice(&frame[..length]);
    }

    /// Completes the checksum if it is partial; `false` if the header points outside the frame.
    ///
    /// Not for super-packets: their segments get their own checksums.
    pub fn complete_checksum(&mut self) -> bool {
        if !self.header.needs_checksum() {
            return true;
        }
        let (start, offset) = (self.header.csum_start.get(), self.header.csum_offset.get());
        let frame = self.frame_mut();
        // Ethernet padding is not summed.
        let end = Headers::parse(frame).map_or(frame.len(), |headers| headers.end as usize);
        let completed = checksum::complete_at(frame, start.into(), end, offset);
        if completed {
            self.header.settle();
        }
        completed
    }

    /// Puts `bytes` in at `at`; `false`, and nothing done, if they do not fit.
    pub(crate) fn insert(&mut self, at: usize, bytes: &[u8]) -> bool {
        if at > self.length || self.length + bytes.len() > self.bytes.len() {
            return false;
        }
        self.bytes.copy_within(at..self.length, at + bytes.len());
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        true
    }

    /// Takes `count` bytes out at `at`, which must be in the frame.
    pub(crate) fn remove(&mut self, at: usize, count: usize) {
        self.bytes.copy_within(at + count..self.length, at);
        self.length -= count;
    }
}

/// Packets that are not in use.
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<Packet>,
}

impl Pool {
    /// A packet with an arbitrary frame; allocates only when all others are in use.
    pub fn take(&mut self) -> Packet {
        self.free.pop().unwrap_or_else(Packet::new)
    }

    pub fn give_back(&mut self, packet: Packet) {
        self.free.push(packet);
    }

    /// A copy of a packet.
    pub fn copy_of(&mut self, packet: &Packet) -> Packet {
        let mut copy = self.take();
        copy.fill(packet.header, packet.frame());
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SegmentBuilder;

    fn partial(segment: &SegmentBuilder) -> Packet {
        let (header, frame) = segment.partial(None);
        let mut packet = Pool::default().take();
        packet.fill(header, &frame);
        packet
    }

    #[test]
    fn a_partial_checksum_is_completed_and_padding_does_not_count() {
        for v6 in [false, true] {
            for payload in [0, 1, 2, 1447, 1448] {
                let segment = SegmentBuilder { v6, payload, tags: 1, ..SegmentBuilder::default() };
                let mut packet = partial(&segment);
                assert_eq!(checksum::tcp_is_right(packet.frame()), Some(false));
                let length = packet.frame().len();
                packet.set_length(length + 5);
                packet.frame_mut()[length..].fill(0xff);
                assert!(packet.complete_checksum());
                assert_eq!(&packet.frame()[..length], segment.build());
                assert!(!packet.header.needs_checksum());
            }
        }
    }

    #[test]
    fn a_header_that_points_outside_the_frame_is_refused() {
        let mut packet = partial(&SegmentBuilder::default());
        packet.header.csum_start.set(60_000);
        assert!(!packet.complete_checksum());
    }
}
