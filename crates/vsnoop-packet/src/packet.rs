//! A frame with its `virtio_net_hdr`, in a buffer that is taken from a pool and goes back to it.
//!
//! Buffers are as large as the largest super-packet, so a packet never allocates while it is
//! handled.

use crate::vnet::VirtioNetHdr;

/// The longest frame that a tap hands over: an IP packet of 64 KB, Ethernet, tags, and some room.
pub const MAX_FRAME_BYTES: usize = 65_535 + 14 + 64;

/// One frame, and what it still owes.
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

    /// The whole buffer, for who fills it; [`set_length`](Self::set_length) follows.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The header and the whole buffer, for a read that fills both.
    pub(crate) fn parts_mut(&mut self) -> (&mut VirtioNetHdr, &mut [u8]) {
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
