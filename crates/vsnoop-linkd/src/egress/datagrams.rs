//! Sends frames to a peer over UDP.
//!
//! Frames become records that each can be delivered alone: a super-packet is cut into TCP segments
//! that fit the path, what cannot be cut is sent in fragments. Compressed, it becomes units that
//! each can be delivered alone, of one datagram on a path with losses, of a few on one without.
//! Records of one size collect in one buffer and leave with one system call (`UDP_SEGMENT`); the
//! last record of a super-packet, a few bytes shorter than the others, is padded, so that the next
//! super-packet can follow in the same call.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use super::send_context::SendContext;
use crate::compression_policy::Compression;
use crate::counts::SessionCounts;
use crate::cpu::coding_clock;
use crate::frame::{Frame, WholeFrame};
use crate::io::udp::{MAX_SEGMENTS, MAX_SEND_BYTES, Segmenting};
use crate::stats::{PeerStats, RuleStats};
use vsnoop_link::compress::unit::{self, Cut, Packer};
use vsnoop_link::compress::{Codecs, Decision, Encoded, Policy};
use vsnoop_link::wire::fragment::{Fragment, Fragments};
use vsnoop_link::wire::item::{
    FRAME_HEADER_BYTES, FrameHeader, fragment_header, unit_header, unit_part_header,
};
use vsnoop_link::wire::seal::{HEADER_BYTES, Sealer};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::restore::restore;
use vsnoop_packet::offload::split::Split;
use vsnoop_packet::offload::state::{Gso, GsoKind, OffloadState};

/// Padding that costs less than a system call.
const WORTH_PADDING_BYTES: usize = 64;
/// Header of a fragment's item.
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

/// How a frame is compressed in units.
struct UnitsOf<'a> {
    flow: u64,
    policy: &'a Policy,
    rule_stats: &'a RuleStats,
}

impl DatagramSender {
    /// Compresses by codecs that the receiver accepts.
    pub fn new(
        sealer: Sealer,
        address: Option<SocketAddr>,
        limit_bytes: usize,
        accepted: Codecs,
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
            packer: Packer::new(accepted, coding_clock()),
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

    /// Sets the measurements of the path: the share of datagrams that it loses, and its rate where
    /// it is known.
    pub fn set_path(&mut self, loss: f64, bytes_per_s: Option<u64>) {
        self.unit_datagrams = unit::datagrams(loss);
        self.packer.set_link_rate(bytes_per_s);
    }

    /// See [`Packer::decision`].
    pub fn decision(&self, flow: u64, policy: &Policy) -> Option<(u64, Decision)> {
        self.packer.decision(flow, policy)
    }

    /// Queues a frame, compressed if its policy says so and it pays. `scratch` is for one that does
    /// not lie in one piece.
    pub fn frame(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) {
        let before = self.sealed_bytes;
        let whole = frame.in_one_piece(scratch);
        let in_units = match (&compression.policy, &whole.headers) {
            (Some(policy), Some(headers)) => {
                let how =
                    UnitsOf { flow: frame.flow(), policy, rule_stats: &compression.rule_stats };
                self.units(context, &whole, headers, how)
            }
            _ => false,
        };
        if !in_units {
            self.as_it_is(context, &whole);
        }
        compression.rule_stats.wire_bytes.add(self.sealed_bytes - before);
    }

    /// Queues a frame whole, or in segments, or in fragments.
    fn as_it_is(&mut self, context: SendContext<'_>, frame: &WholeFrame<'_>) {
        let WholeFrame { offload, way, bytes, .. } = *frame;
        let limit = self.item_limit();
        let room = limit.saturating_sub(FRAME_HEADER_BYTES);
        if offload.gso.is_none() && bytes.len() <= room {
            let header = FrameHeader::of(offload, way);
            self.item(context, &[header.bytes(), bytes]);
            return;
        }
        let headers = frame.headers.as_ref();
        let split = headers.and_then(|headers| Split::new(offload, headers, bytes, room));
        let Some(mut split) = split else {
            self.fragments(context, frame);
            return;
        };
        if split.lost_pieces() > 0 {
            context.stats.dropped_send.add(split.lost_pieces() as u64, split.lost_bytes() as u64);
        }
        let header = FrameHeader::of(OffloadState { needs_checksum: true, gso: None }, way);
        let header_bytes = header.bytes().len();
        let piece_bytes = split.piece_bytes();
        let record_bytes = header_bytes + piece_bytes + self.sealer.suite().overhead_bytes();
        for _ in 0..split.pieces() {
            self.make_room(context, record_bytes);
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
            self.seal(context.stats, record_bytes - missing + padding);
        }
    }

    /// Sends a TCP frame in compressed units; `false`: it cannot be, and nothing was sent.
    ///
    /// Parts that do not become smaller go as pieces of their own, so that the receiver gets each
    /// byte once and in order.
    fn units(
        &mut self,
        context: SendContext<'_>,
        frame: &WholeFrame<'_>,
        headers: &Headers,
        how: UnitsOf<'_>,
    ) -> bool {
        let (payload_at, end) = (usize::from(headers.payload), headers.end as usize);
        let limit = self.item_limit();
        let room = limit.saturating_sub(FRAME_HEADER_BYTES);
        // It says, too, whether the frame may be cut at all, and that its checksum is right.
        let Some(split) = Split::new(frame.offload, headers, frame.bytes, room) else {
            return false;
        };
        if end - payload_at < WORTH_COMPRESSING_BYTES {
            return false;
        }
        let gso = frame.offload.gso;
        let granule_bytes = gso.map_or(split.piece_bytes() - payload_at, |gso| gso.size.into());
        let kind = if headers.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = gso.or(Some(Gso { kind, size: granule_bytes as u16, ecn: false }));
        let offload = OffloadState { needs_checksum: true, gso };
        let frame = WholeFrame { offload, bytes: &frame.bytes[..end], ..*frame };
        let (head, payload) = frame.bytes.split_at(payload_at);
        let part_room = limit - UNIT_PART_HEADER_BYTES;
        let limit_bytes = part_room * self.unit_datagrams - UNIT_HEADER_BYTES;
        let (stats, rule_stats) = (context.stats, how.rule_stats);
        let mut at = 0;
        let mut body = std::mem::take(&mut self.body);
        while at < payload.len() {
            body.clear();
            let cut = Cut { head, payload: &payload[at..], granule_bytes, limit_bytes };
            let before_ns = self.packer.stats().busy_ns;
            let packed = self.packer.pack(how.flow, how.policy, cut, context.now_ns, &mut body);
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
                self.unit(context, &unit_header(offload, at, frame.way), &body);
            } else {
                rule_stats.raw.add(1);
                self.raw(context, &frame, headers, at..at + taken);
            }
            at += taken;
        }
        self.body = body;
        true
    }

    /// Sends the part `range` of a super-packet's payload as it is.
    fn raw(
        &mut self,
        context: SendContext<'_>,
        frame: &WholeFrame<'_>,
        headers: &Headers,
        range: Range<usize>,
    ) {
        let (head, payload) = frame.bytes.split_at(headers.payload.into());
        let mut piece = [head, &payload[range.clone()]].concat();
        let Some(offload) = restore(&mut piece, range.start, frame.offload) else { return };
        // The layers begin where they do in the whole.
        let headers = Some(Headers { end: piece.len() as u32, ..*headers });
        self.as_it_is(context, &WholeFrame { offload, way: frame.way, headers, bytes: &piece });
    }

    fn unit(&mut self, context: SendContext<'_>, header: &[u8], body: &[u8]) {
        let part_room = self.item_limit() - UNIT_PART_HEADER_BYTES;
        if header.len() + body.len() <= self.item_limit() {
            self.item(context, &[header, body]);
            return;
        }
        let id = self.next_unit;
        self.next_unit = id.wrapping_add(1);
        let whole = [header, body].concat();
        let parts = Fragments::new(id, &whole, part_room);
        self.in_parts(context, whole.len(), parts, unit_part_header);
    }

    fn fragments(&mut self, context: SendContext<'_>, frame: &WholeFrame<'_>) {
        let id = self.next_fragment;
        let part_bytes = self.item_limit().saturating_sub(FRAGMENT_HEADER_BYTES);
        self.next_fragment = id.wrapping_add(1);
        let fragments = Fragments::new(id, frame.bytes, part_bytes);
        let header = |fragment| fragment_header(frame.offload, fragment, frame.way);
        self.in_parts(context, frame.bytes.len(), fragments, header);
    }

    /// Sends each part as an item with its header; `None`: it cannot be cut into so few, and is
    /// dropped.
    fn in_parts<H: AsRef<[u8]>>(
        &mut self,
        context: SendContext<'_>,
        bytes: usize,
        fragments: Option<Fragments<'_>>,
        header: impl Fn(Fragment) -> H,
    ) {
        let Some(fragments) = fragments else {
            context.stats.dropped_send.add(1, bytes as u64);
            return;
        };
        for (fragment, part) in fragments {
            self.item(context, &[header(fragment).as_ref(), part]);
        }
    }

    /// Queues one item; longer ones than the limit are the caller's mistake and are dropped.
    pub fn item(&mut self, context: SendContext<'_>, parts: &[&[u8]]) {
        let item_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let record_bytes = item_bytes + self.sealer.suite().overhead_bytes();
        if record_bytes > MAX_SEND_BYTES {
            context.stats.dropped_send.add(1, record_bytes as u64);
            return;
        }
        self.make_room(context, record_bytes);
        let mut at = self.length + HEADER_BYTES;
        for part in parts {
            self.buffer[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.seal(context.stats, record_bytes);
    }

    /// Sends an item at once and in a datagram of its own, padded to `pad_to` bytes; to `to`, if
    /// that is not the session's address.
    pub fn alone(
        &mut self,
        context: SendContext<'_>,
        item: &[u8],
        pad_to: usize,
        to: Option<SocketAddr>,
    ) {
        self.flush(context);
        let address = self.address;
        self.address = to.or(address);
        let missing = pad_to.saturating_sub(item.len() + self.sealer.suite().overhead_bytes());
        let padding = [0; 2048];
        let mut parts: Vec<&[u8]> = vec![item];
        for at in (0..missing).step_by(padding.len()) {
            parts.push(&padding[..padding.len().min(missing - at)]);
        }
        self.item(context, &parts);
        self.flush(context);
        self.address = address;
    }

    /// Sends what is queued if a record of this size cannot follow it.
    fn make_room(&mut self, context: SendContext<'_>, record_bytes: usize) {
        let last_was_shorter = self.length != self.count * self.segment_bytes;
        if self.count > 0
            && (last_was_shorter
                || record_bytes > self.segment_bytes
                || self.count == MAX_SEGMENTS
                || self.length + record_bytes > MAX_SEND_BYTES)
        {
            self.flush(context);
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
    pub fn flush(&mut self, context: SendContext<'_>) {
        if self.count == 0 {
            return;
        }
        let SendContext { udp, stats, .. } = context;
        let bytes = &self.buffer[..self.length];
        let segmenting = &mut self.segmenting;
        let sent = self.address.map(|to| udp.send(to, bytes, self.segment_bytes, segmenting));
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
    use crate::io::udp::UdpSocket;
    use vsnoop_link::compress::{Method, Owner};
    use vsnoop_link::wire::seal::{Material, Suite};
    use vsnoop_packet::testing::Segment;

    #[test]
    fn a_class_has_the_bytes_on_the_wire_that_its_frames_became_compressed_or_not() {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let (socket, far) = (UdpSocket::bind(here), std::net::UdpSocket::bind(here));
        let (socket, far) = (socket.unwrap(), far.unwrap().local_addr().unwrap());
        let sealer = Sealer::new(Suite::Plain, &Material { key: [1; 32], nonce: [2; 12] }, 1, 0, 0);
        let mut datagrams =
            DatagramSender::new(sealer, Some(far), 1472, Codecs::ALL, Arc::default());
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
            let parts = [&frame[..]];
            let context = SendContext { udp: &socket, stats: &stats, now_ns: 0 };
            let frame = Frame::whole(offload, &parts);
            datagrams.frame(context, &frame, compression, &mut Vec::new());
            datagrams.flush(context);
            let rule_stats = &compression.rule_stats;
            rule_stats.bytes.add(frame.bytes as u64);
            let headers = rule_stats.wire_bytes.get() - rule_stats.after_compression();
            assert!((1..100).contains(&headers), "{headers}");
            sum += rule_stats.wire_bytes.get();
            assert_eq!(stats.wire_bytes_out.get(), sum);
        }
        assert!(compressions[1].rule_stats.wire_bytes.get() < 650, "nothing was compressed");
    }
}
