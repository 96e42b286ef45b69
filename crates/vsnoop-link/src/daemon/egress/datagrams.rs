//! Sending to a peer over UDP.
//!
//! Frames become records that each can be delivered alone: a super-packet is cut into TCP segments that
//! fit the path, what cannot be cut is sent in fragments. Records of one size collect in one buffer and
//! leave with one system call (`UDP_SEGMENT`); the last record of a super-packet, a few bytes shorter
//! than the others, is padded, so that the next super-packet can follow in the same call.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::daemon::counts::SessionCounts;
use crate::daemon::io::udp::{MAX_SEGMENTS, MAX_SEND_BYTES, UdpSocket};
use crate::daemon::stats::PeerStats;
use crate::offload::fragment::Fragments;
use crate::offload::headers::Headers;
use crate::offload::owed::Owed;
use crate::offload::split::Split;
use crate::wire::item::{FRAME_HEADER_BYTES, FrameHeader, fragment_header};
use crate::wire::seal::{HEADER_BYTES, Sealer};

/// Padding that costs less than a system call.
const WORTH_PADDING_BYTES: usize = 64;
/// Of a fragment's item.
const FRAGMENT_HEADER_BYTES: usize = 8;

pub struct Datagrams {
    sealer: Sealer,
    address: Option<SocketAddr>,
    /// The longest datagram that the path takes, less IP and UDP header.
    limit_bytes: usize,
    buffer: Box<[u8]>,
    length: usize,
    segment_bytes: usize,
    count: usize,
    next_fragment: u16,
    too_long: bool,
    counts: Arc<SessionCounts>,
}

impl Datagrams {
    pub fn new(
        sealer: Sealer,
        address: Option<SocketAddr>,
        limit_bytes: usize,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            sealer,
            address,
            limit_bytes,
            buffer: vec![0; MAX_SEND_BYTES].into_boxed_slice(),
            length: 0,
            segment_bytes: 0,
            count: 0,
            next_fragment: 0,
            too_long: false,
            counts,
        }
    }

    pub fn set_address(&mut self, address: SocketAddr) {
        self.address = Some(address);
    }

    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Items may have this many bytes.
    pub fn item_limit(&self) -> usize {
        self.limit_bytes.saturating_sub(self.sealer.suite().overhead_bytes())
    }

    /// Since the last call: the host itself refused a datagram for its length (`EMSGSIZE`).
    pub fn was_too_long(&mut self) -> bool {
        std::mem::take(&mut self.too_long)
    }

    /// Queues a frame.
    pub fn frame(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        owed: Owed,
        headers: Option<&Headers>,
        frame: &[u8],
    ) {
        let limit = self.item_limit();
        let room = limit.saturating_sub(FRAME_HEADER_BYTES);
        if owed.gso.is_none() && frame.len() <= room {
            let header = FrameHeader::of(owed);
            self.item(socket, stats, &[header.bytes(), frame]);
            return;
        }
        let split = headers.and_then(|headers| Split::new(owed, headers, frame, room));
        let Some(mut split) = split else {
            self.fragments(socket, stats, owed, frame);
            return;
        };
        let header = FrameHeader::of(Owed { checksum: true, gso: None });
        let header_bytes = header.bytes().len();
        let piece_bytes = split.piece_bytes();
        let record_bytes = header_bytes + piece_bytes + self.sealer.suite().overhead_bytes();
        for _ in 0..split.pieces() {
            self.make_room(socket, stats, record_bytes);
            let start = self.length;
            let item = start + HEADER_BYTES;
            let body = item + header_bytes;
            self.buffer[item..body].copy_from_slice(header.bytes());
            let Some(written) = split.next(&mut self.buffer[body..body + piece_bytes]) else {
                return;
            };
            let missing = piece_bytes - written;
            let padding = if missing <= WORTH_PADDING_BYTES { missing } else { 0 };
            self.buffer[body + written..body + written + padding].fill(0);
            self.seal(stats, record_bytes - missing + padding);
        }
    }

    fn fragments(&mut self, socket: &UdpSocket, stats: &PeerStats, owed: Owed, frame: &[u8]) {
        let id = self.next_fragment;
        let part_bytes = self.item_limit().saturating_sub(FRAGMENT_HEADER_BYTES);
        let Some(fragments) = Fragments::new(id, frame, part_bytes) else {
            stats.dropped_send.add(1);
            return;
        };
        self.next_fragment = id.wrapping_add(1);
        for (fragment, part) in fragments {
            self.item(socket, stats, &[&fragment_header(owed, fragment), part]);
        }
    }

    /// Queues one item; longer ones than the limit are the caller's mistake and are dropped.
    pub fn item(&mut self, socket: &UdpSocket, stats: &PeerStats, parts: &[&[u8]]) {
        let item_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let record_bytes = item_bytes + self.sealer.suite().overhead_bytes();
        if record_bytes > MAX_SEND_BYTES {
            stats.dropped_send.add(1);
            return;
        }
        self.make_room(socket, stats, record_bytes);
        let mut at = self.length + HEADER_BYTES;
        for part in parts {
            self.buffer[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.seal(stats, record_bytes);
    }

    /// Sends an item at once and in a datagram of its own, padded to `pad_to` bytes, perhaps elsewhere.
    pub fn alone(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        item: &[u8],
        pad_to: usize,
        to: Option<SocketAddr>,
    ) {
        self.flush(socket, stats);
        let missing = pad_to.saturating_sub(item.len() + self.sealer.suite().overhead_bytes());
        let padding = [0; 2048];
        let mut parts: Vec<&[u8]> = vec![item];
        for at in (0..missing).step_by(padding.len()) {
            parts.push(&padding[..padding.len().min(missing - at)]);
        }
        self.item(socket, stats, &parts);
        let usual = self.address;
        self.address = to.or(usual);
        self.flush(socket, stats);
        self.address = usual;
    }

    /// Sends what is queued if a record of this size cannot follow it.
    fn make_room(&mut self, socket: &UdpSocket, stats: &PeerStats, record_bytes: usize) {
        let last_was_shorter = self.length != self.count * self.segment_bytes;
        if self.count > 0
            && (last_was_shorter
                || record_bytes > self.segment_bytes
                || self.count == MAX_SEGMENTS
                || self.length + record_bytes > MAX_SEND_BYTES)
        {
            self.flush(socket, stats);
        }
    }

    fn seal(&mut self, stats: &PeerStats, record_bytes: usize) {
        let record = &mut self.buffer[self.length..self.length + record_bytes];
        if !self.sealer.seal(record) {
            stats.dropped_send.add(1);
            return;
        }
        if self.count == 0 {
            self.segment_bytes = record_bytes;
        }
        self.length += record_bytes;
        self.count += 1;
    }

    /// Sends what is queued.
    pub fn flush(&mut self, socket: &UdpSocket, stats: &PeerStats) {
        if self.count == 0 {
            return;
        }
        let bytes = &self.buffer[..self.length];
        match self.address.map(|address| socket.send(address, bytes, self.segment_bytes)) {
            Some(Ok(())) => {
                stats.records_out.add(self.count as u64);
                stats.wire_bytes_out.add(self.length as u64);
                self.counts.sent_packets.add(self.count as u64);
                self.counts.sent_bytes.add(self.length as u64);
            }
            Some(Err(error)) => {
                self.too_long |= error.raw_os_error() == Some(libc::EMSGSIZE);
                stats.dropped_send.add(self.count as u64);
            }
            None => stats.dropped_send.add(self.count as u64),
        }
        self.length = 0;
        self.count = 0;
    }
}
