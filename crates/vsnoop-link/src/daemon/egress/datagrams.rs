//! Sends frames to a peer over UDP.
//!
//! Frames become records that each can be delivered alone: a super-packet is cut into TCP segments
//! that fit the path, what cannot be cut is sent in fragments. Compressed, it becomes units that
//! each can be delivered alone, of one datagram on a path with losses, of a few on one without.
//! Records of one size collect in one buffer and leave with one system call (`UDP_SEGMENT`); the
//! last record of a super-packet, a few bytes shorter than the others, is padded, so that the next
//! super-packet can follow in the same call.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::compress::unit::{self, Cut, Packer};
use crate::compress::{Decision, Encoded, Policy};
use crate::daemon::compression_policy::Compression;
use crate::daemon::counts::SessionCounts;
use crate::daemon::io::udp::{MAX_SEGMENTS, MAX_SEND_BYTES, Segmenting, UdpSocket};
use crate::daemon::stats::PeerStats;
use crate::offload::fragment::{Fragment, Fragments};
use crate::offload::headers::Headers;
use crate::offload::restore::restore;
use crate::offload::split::Split;
use crate::offload::state::{Gso, GsoKind, OffloadState};
use crate::wire::item::{
    FRAME_HEADER_BYTES, FrameHeader, Way, fragment_header, unit_header, unit_part_header,
};
use crate::wire::seal::{HEADER_BYTES, Sealer};

/// Padding that costs less than a system call.
const WORTH_PADDING_BYTES: usize = 64;
/// Of a fragment's item.
const FRAGMENT_HEADER_BYTES: usize = 8;
const UNIT_HEADER_BYTES: usize = 8;
const UNIT_PART_HEADER_BYTES: usize = 5;
/// Less payload is sent as it is.
const WORTH_COMPRESSING_BYTES: usize = 200;

pub struct DatagramSender {
    sealer: Sealer,
    address: Option<SocketAddr>,
    segmenting: Segmenting,
    /// The longest datagram that the path takes, less IP and UDP header.
    limit_bytes: usize,
    buffer: Box<[u8]>,
    length: usize,
    segment_bytes: usize,
    count: usize,
    next_fragment: u16,
    next_unit: u16,
    unit_datagrams: usize,
    packer: Packer,
    body: Vec<u8>,
    /// The shortest datagram that the host refused for its length.
    too_long: Option<usize>,
    /// In all records so far.
    sealed_bytes: u64,
    counts: Arc<SessionCounts>,
}

impl DatagramSender {
    pub fn new(
        sealer: Sealer,
        address: Option<SocketAddr>,
        limit_bytes: usize,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            sealer,
            address,
            segmenting: Segmenting::default(),
            limit_bytes,
            buffer: vec![0; MAX_SEND_BYTES].into_boxed_slice(),
            length: 0,
            segment_bytes: 0,
            count: 0,
            next_fragment: 0,
            next_unit: 0,
            unit_datagrams: unit::datagrams(0.0),
            packer: Packer::default(),
            body: Vec::new(),
            too_long: None,
            sealed_bytes: 0,
            counts,
        }
    }

    pub fn set_address(&mut self, address: SocketAddr) {
        self.address = Some(address);
        self.segmenting = Segmenting::default();
    }

    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Items may have this many bytes.
    pub fn item_limit(&self) -> usize {
        self.limit_bytes.saturating_sub(self.sealer.suite().overhead_bytes())
    }

    /// The length of a datagram that the host itself refused for it (`EMSGSIZE`) since the last
    /// call.
    pub fn take_too_long(&mut self) -> Option<usize> {
        self.too_long.take()
    }

    /// What is known of the path: the share of datagrams that it loses, and its rate where it is
    /// known.
    pub fn set_path(&mut self, loss: f64, bytes_per_s: Option<u64>) {
        self.unit_datagrams = unit::datagrams(loss);
        self.packer.set_link_rate(bytes_per_s);
    }

    /// See [`Packer::decision`].
    pub fn decision(&self, flow: u64, policy: &Policy) -> Option<(u64, Decision)> {
        self.packer.decision(flow, policy)
    }

    /// Queues a frame, compressed if its policy says so and it pays.
    #[allow(clippy::too_many_arguments)]
    pub fn frame(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        offload: OffloadState,
        way: Way,
        headers: Option<&Headers>,
        frame: &[u8],
        flow: u64,
        compression: &Compression,
        now_ns: u64,
    ) {
        let before = self.sealed_bytes;
        let in_units = headers.is_some_and(|headers| {
            self.units(socket, stats, offload, way, headers, frame, flow, compression, now_ns)
        });
        if !in_units {
            self.as_it_is(socket, stats, offload, way, headers, frame);
        }
        compression.rule_stats.wire_bytes.add(self.sealed_bytes - before);
    }

    /// Queues a frame whole, or in segments, or in fragments.
    fn as_it_is(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        offload: OffloadState,
        way: Way,
        headers: Option<&Headers>,
        frame: &[u8],
    ) {
        let limit = self.item_limit();
        let room = limit.saturating_sub(FRAME_HEADER_BYTES);
        if offload.gso.is_none() && frame.len() <= room {
            let header = FrameHeader::of(offload, way);
            self.item(socket, stats, &[header.bytes(), frame]);
            return;
        }
        let split = headers.and_then(|headers| Split::new(offload, headers, frame, room));
        let Some(mut split) = split else {
            self.fragments(socket, stats, offload, way, frame);
            return;
        };
        if split.lost_pieces() > 0 {
            stats.dropped_send.add(split.lost_pieces() as u64, split.lost_bytes() as u64);
        }
        let header = FrameHeader::of(OffloadState { needs_checksum: true, gso: None }, way);
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

    /// Sends a TCP frame in compressed units; `false`: it cannot be, and nothing was sent.
    ///
    /// Parts that do not become smaller go as pieces of their own, so that the receiver gets each
    /// byte once and in order.
    #[allow(clippy::too_many_arguments)]
    fn units(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        offload: OffloadState,
        way: Way,
        headers: &Headers,
        frame: &[u8],
        flow: u64,
        compression: &Compression,
        now_ns: u64,
    ) -> bool {
        let Some(policy) = &compression.policy else { return false };
        let rule_stats = &compression.rule_stats;
        let (payload_at, end) = (usize::from(headers.payload), headers.end as usize);
        let limit = self.item_limit();
        let room = limit.saturating_sub(FRAME_HEADER_BYTES);
        // It says, too, whether the frame may be cut at all, and that its checksum is right.
        let Some(split) = Split::new(offload, headers, frame, room) else { return false };
        if end - payload_at < WORTH_COMPRESSING_BYTES {
            return false;
        }
        let granule_bytes =
            offload.gso.map_or(split.piece_bytes() - payload_at, |gso| gso.size.into());
        let kind = if headers.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = offload.gso.or(Some(Gso { kind, size: granule_bytes as u16, ecn: false }));
        let offload = OffloadState { needs_checksum: true, gso };
        let (head, payload) = (&frame[..payload_at], &frame[payload_at..end]);
        let part_room = limit - UNIT_PART_HEADER_BYTES;
        let limit_bytes = part_room * self.unit_datagrams - UNIT_HEADER_BYTES;
        let mut at = 0;
        let mut body = std::mem::take(&mut self.body);
        while at < payload.len() {
            body.clear();
            let cut = Cut { head, payload: &payload[at..], granule_bytes, limit_bytes };
            let before_ns = self.packer.stats().busy_ns;
            let packed = self.packer.pack(flow, policy, cut, now_ns, &mut body);
            let spent_ns = self.packer.stats().busy_ns - before_ns;
            stats.compress_ns.add(spent_ns);
            rule_stats.compress_ns.add(spent_ns);
            let taken = packed.payload_bytes.clamp(1, payload.len() - at);
            // Each part has the headers with it, and the frame has them once.
            let of_frame = if at == 0 { head.len() + taken } else { taken };
            if packed.encoded == Encoded::Compressed {
                stats.compressed_from.add(of_frame as u64);
                stats.compressed_to.add(body.len() as u64);
                rule_stats.compressed_from.add(of_frame as u64);
                rule_stats.compressed_to.add(body.len() as u64);
                self.unit(socket, stats, &unit_header(offload, at, way), &body);
            } else {
                rule_stats.raw.add(1);
                self.raw(socket, stats, offload, way, &frame[..end], payload_at, at, taken);
            }
            at += taken;
        }
        self.body = body;
        true
    }

    /// Sends a part of a super-packet's payload as it is.
    #[allow(clippy::too_many_arguments)]
    fn raw(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        offload: OffloadState,
        way: Way,
        frame: &[u8],
        payload_at: usize,
        offset: usize,
        bytes: usize,
    ) {
        let part = &frame[payload_at + offset..payload_at + offset + bytes];
        let mut piece = [&frame[..payload_at], part].concat();
        let Some(offload) = restore(&mut piece, offset, offload) else { return };
        let headers = Headers::of(&piece);
        self.as_it_is(socket, stats, offload, way, headers.as_ref(), &piece);
    }

    fn unit(&mut self, socket: &UdpSocket, stats: &PeerStats, header: &[u8], body: &[u8]) {
        let part_room = self.item_limit() - UNIT_PART_HEADER_BYTES;
        if header.len() + body.len() <= self.item_limit() {
            self.item(socket, stats, &[header, body]);
            return;
        }
        let id = self.next_unit;
        self.next_unit = id.wrapping_add(1);
        let whole = [header, body].concat();
        let parts = Fragments::new(id, &whole, part_room);
        self.in_parts(socket, stats, whole.len(), parts, unit_part_header);
    }

    fn fragments(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        offload: OffloadState,
        way: Way,
        frame: &[u8],
    ) {
        let id = self.next_fragment;
        let part_bytes = self.item_limit().saturating_sub(FRAGMENT_HEADER_BYTES);
        self.next_fragment = id.wrapping_add(1);
        let fragments = Fragments::new(id, frame, part_bytes);
        let header = |fragment| fragment_header(offload, fragment, way);
        self.in_parts(socket, stats, frame.len(), fragments, header);
    }

    /// Sends each part as an item with its header; `None`: it cannot be cut into so few, and is
    /// dropped.
    fn in_parts<H: AsRef<[u8]>>(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        bytes: usize,
        fragments: Option<Fragments<'_>>,
        header: impl Fn(Fragment) -> H,
    ) {
        let Some(fragments) = fragments else {
            stats.dropped_send.add(1, bytes as u64);
            return;
        };
        for (fragment, part) in fragments {
            self.item(socket, stats, &[header(fragment).as_ref(), part]);
        }
    }

    /// Queues one item; longer ones than the limit are the caller's mistake and are dropped.
    pub fn item(&mut self, socket: &UdpSocket, stats: &PeerStats, parts: &[&[u8]]) {
        let item_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let record_bytes = item_bytes + self.sealer.suite().overhead_bytes();
        if record_bytes > MAX_SEND_BYTES {
            stats.dropped_send.add(1, record_bytes as u64);
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

    /// Sends an item at once and in a datagram of its own, padded to `pad_to` bytes.
    pub fn alone(&mut self, socket: &UdpSocket, stats: &PeerStats, item: &[u8], pad_to: usize) {
        self.flush(socket, stats);
        let missing = pad_to.saturating_sub(item.len() + self.sealer.suite().overhead_bytes());
        let padding = [0; 2048];
        let mut parts: Vec<&[u8]> = vec![item];
        for at in (0..missing).step_by(padding.len()) {
            parts.push(&padding[..padding.len().min(missing - at)]);
        }
        self.item(socket, stats, &parts);
        self.flush(socket, stats);
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
        if !stats.seal.time(|| self.sealer.seal(record)) {
            stats.dropped_send.add(1, record_bytes as u64);
            return;
        }
        if self.count == 0 {
            self.segment_bytes = record_bytes;
        }
        self.length += record_bytes;
        self.count += 1;
        self.sealed_bytes += record_bytes as u64;
    }

    /// Sends what is queued.
    pub fn flush(&mut self, socket: &UdpSocket, stats: &PeerStats) {
        if self.count == 0 {
            return;
        }
        let bytes = &self.buffer[..self.length];
        let segmenting = &mut self.segmenting;
        let sent = self.address.map(|to| socket.send(to, bytes, self.segment_bytes, segmenting));
        match sent {
            Some(Ok(())) => {
                stats.records_out.add(self.count as u64);
                stats.wire_bytes_out.add(self.length as u64);
                self.counts.sent_packets.add(self.count as u64);
                self.counts.sent_bytes.add(self.length as u64);
            }
            Some(Err(error)) => {
                if error.raw_os_error() == Some(libc::EMSGSIZE) {
                    // The longest of them was; which others were is not said.
                    let bytes = self.segment_bytes;
                    self.too_long = Some(self.too_long.map_or(bytes, |shorter| shorter.min(bytes)));
                }
                stats.dropped_send.add(self.count as u64, self.length as u64);
            }
            None => stats.dropped_send.add(self.count as u64, self.length as u64),
        }
        self.length = 0;
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Method, Owner};
    use crate::offload::testing::Segment;
    use crate::wire::seal::{Material, Suite};

    #[test]
    fn a_class_has_the_bytes_on_the_wire_that_its_frames_became_compressed_or_not() {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let (socket, far) = (UdpSocket::bind(here), std::net::UdpSocket::bind(here));
        let (socket, far) = (socket.unwrap(), far.unwrap().local_addr().unwrap());
        let sealer = Sealer::new(Suite::Plain, &Material { key: [1; 32], nonce: [2; 12] }, 1, 0, 0);
        let mut datagrams = DatagramSender::new(sealer, Some(far), 1472, Arc::default());
        let stats = PeerStats::default();
        let policy = Policy { method: Method::Lz4, owner: Owner::Named(0), dictionary: None };
        let compressions =
            [None, Some(policy)].map(|policy| Compression { policy, rule_stats: Arc::default() });
        let mut frame = Segment { payload: 1300, ..Segment::default() }.build();
        let headers = Headers::of(&frame).unwrap();
        // The sum of zeroes: its checksum is still to be made.
        frame[usize::from(headers.payload)..].fill(0);
        let offload = OffloadState { needs_checksum: true, gso: None };
        let mut sum = 0;
        for compression in &compressions {
            let (way, headers) = (Way::Forwarded, Some(&headers));
            datagrams.frame(&socket, &stats, offload, way, headers, &frame, 1, compression, 0);
            datagrams.flush(&socket, &stats);
            let rule_stats = &compression.rule_stats;
            rule_stats.bytes.add(frame.len() as u64);
            let headers = rule_stats.wire_bytes.get() - rule_stats.after_compression();
            assert!((1..100).contains(&headers), "{headers}");
            sum += rule_stats.wire_bytes.get();
            assert_eq!(stats.wire_bytes_out.get(), sum);
        }
        assert!(compressions[1].rule_stats.wire_bytes.get() < 650, "nothing was compressed");
    }
}
