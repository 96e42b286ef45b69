//! Sends frames to a peer over UDP.
//!
//! Frames become records that the receiver can use one by one, in any order. A super-packet is cut
//! into TCP segments that fit the path; a frame that cannot be cut is sent in fragments. With
//! compression it becomes units: of one datagram each on a path with losses, of a few on one
//! without. Records of one size collect in a batch and leave with one system call (`UDP_SEGMENT`).
//! The last record of a super-packet is padded if it is a few bytes shorter than the others, so
//! that the next super-packet can follow in the same call.
//!
//! Each session has a socket of its own at the link's port. Its send buffer is small, about what
//! the path takes in a second divided by [`HELD_PARTS_OF_SECOND`], so that a slow peer fills no
//! buffer that others need. Frames that the socket does not take wait in a fair queue (FQ-CoDel,
//! RFC 8290), which may drop them; they are sealed when they leave it. Messages of the session
//! itself leave by the link's socket, ahead of the queue.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::pieces::pieces_of;
use super::send_context::SendContext;
use crate::compression_policy::Compression;
use crate::config::OuterConfig;
use crate::counts::SessionCounts;
use crate::cpu::coding_clock;
use crate::frame::{Frame, WholeFrame};
use crate::io::udp::{Destination, Endpoints, MAX_SEGMENTS, MAX_SEND_BYTES, Mark, UdpSocket};
use crate::stats::{PeerStats, RuleStats};
use vsnoop_link::compress::unit::{self, Cut, Packer};
use vsnoop_link::compress::{Codecs, Decision, Encoded, Policy};
use vsnoop_link::queue::{FairQueue, QueueLimits, QueueStats};
use vsnoop_link::wire::fragment::{Fragment, Fragments};
use vsnoop_link::wire::item::{
    FRAME_HEADER_BYTES, FrameHeader, Way, fragment_header, unit_header, unit_part_header,
};
use vsnoop_link::wire::seal::{HEADER_BYTES, Sealer};
use vsnoop_link::wire::traffic_class::{Copied, class_of};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::offload::restore::restore;
use vsnoop_packet::offload::split::Split;
use vsnoop_packet::offload::state::{Gso, GsoKind, OffloadState};

/// Most bytes of padding: more would cost more than another system call.
const WORTH_PADDING_BYTES: usize = 64;
/// Class selector 6, for network control (RFC 4594), as a traffic class.
const CONTROL_CLASS: u8 = 48 << 2;
/// Header of a fragment's item.
const FRAGMENT_HEADER_BYTES: usize = 8;
const UNIT_HEADER_BYTES: usize = 8;
const UNIT_PART_HEADER_BYTES: usize = 5;
/// Least payload that is compressed.
const WORTH_COMPRESSING_BYTES: usize = 200;

/// Number of flow labels (RFC 6437) over which a session spreads its flows.
const FLOW_LABELS: u64 = 64;

/// The socket's send buffer is 1/`HELD_PARTS_OF_SECOND` of what the path takes in a second, at
/// least `LEAST_HELD_BYTES` and at most `MOST_HELD_BYTES`; `FIRST_HELD_BYTES` until the rate is
/// known.
const HELD_PARTS_OF_SECOND: u64 = 250;
const LEAST_HELD_BYTES: usize = 32 << 10;
const MOST_HELD_BYTES: usize = 2 << 20;
const FIRST_HELD_BYTES: usize = 256 << 10;

/// A frame in the queue.
struct QueuedFrame {
    offload: OffloadState,
    way: Way,
    label: u16,
    bytes: Vec<u8>,
    flow: u64,
    compression: Compression,
}

/// Records of one size, the last perhaps shorter, for which the socket had no room.
struct Sealed {
    bytes: Vec<u8>,
    segment_bytes: usize,
    mark: Mark,
}

pub struct DatagramSender {
    sealer: Sealer,
    /// `None` until [`DatagramSender::open`].
    socket: Option<UdpSocket>,
    destination: Option<Destination>,
    /// Records that the socket had no room for.
    sealed: VecDeque<Sealed>,
    /// Allocated when the first frame has to wait.
    queue: Option<Box<FairQueue<QueuedFrame>>>,
    /// The queue's counters at the last [`Self::count_dropped`].
    queue_stats: QueueStats,
    /// The rate that the socket's send buffer was last set for.
    held_for_bytes_per_s: Option<u64>,
    /// Most bytes of a batch.
    batch_bytes: usize,
    control: Vec<u8>,
    /// The longest record: what the path takes, less IP and UDP header.
    limit_bytes: usize,
    /// The batch: `count` records of `segment_bytes` each, the last perhaps shorter; `length`
    /// bytes.
    buffer: Box<[u8]>,
    length: usize,
    segment_bytes: usize,
    count: usize,
    /// Mark of the batch.
    mark: Mark,
    /// Mark of the frame that is being added.
    frame_mark: Mark,
    /// Label of the frame that is being added.
    frame_label: u16,
    outer: OuterConfig,
    /// See [`Self::set_gso`].
    gso: bool,
    next_fragment: u16,
    next_unit: u16,
    unit_datagrams: usize,
    packer: Packer,
    body: Vec<u8>,
    /// The shortest datagram that the host refused for its length (EMSGSIZE).
    too_long: Option<usize>,
    /// Sum of all records so far.
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
    /// `limit_bytes`: see [`Self::set_limit`]. `accepted`: codecs that the receiver decompresses.
    pub fn new(
        sealer: Sealer,
        address: Option<SocketAddr>,
        limit_bytes: usize,
        accepted: Codecs,
        counts: Arc<SessionCounts>,
    ) -> Self {
        Self {
            sealer,
            socket: None,
            destination: address.map(|peer| Destination::new(Endpoints { peer, local: None })),
            sealed: VecDeque::new(),
            queue: None,
            queue_stats: QueueStats::default(),
            held_for_bytes_per_s: None,
            batch_bytes: MAX_SEND_BYTES,
            control: Vec::new(),
            limit_bytes,
            buffer: vec![0; MAX_SEND_BYTES].into_boxed_slice(),
            length: 0,
            segment_bytes: 0,
            count: 0,
            mark: Mark::default(),
            frame_mark: Mark::default(),
            frame_label: 0,
            outer: OuterConfig::default(),
            gso: true,
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

    /// Sends by this socket from now on. No other session uses it.
    pub fn open(&mut self, socket: UdpSocket) {
        socket.hold_at_most(FIRST_HELD_BYTES);
        self.socket = Some(socket);
    }

    /// The session's socket; `None` before [`Self::open`].
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(UdpSocket::as_fd)
    }

    /// Sets which fields of the inner packets the datagrams copy.
    pub fn set_outer(&mut self, outer: OuterConfig) {
        self.outer = outer;
    }

    /// Whether records of a batch leave with one system call, or one by one.
    pub fn set_gso(&mut self, gso: bool) {
        self.gso = gso;
    }

    pub fn set_address(&mut self, ends: Endpoints) {
        self.destination = Some(Destination::new(ends));
    }

    /// Whether the socket had no room; then the caller waits until it is writable.
    pub fn is_blocked(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Bytes in the queue, and of records that the socket had no room for.
    pub fn queue_bytes(&self) -> usize {
        let sealed: usize = self.sealed.iter().map(|sealed| sealed.bytes.len()).sum();
        sealed + self.queue.as_ref().map_or(0, |queue| queue.bytes())
    }

    /// Counts the frames and records that wait as dropped, because the session ends.
    pub fn count_waiting_as_dropped(&self, stats: &PeerStats) {
        let waiting = self.queue.as_ref().map_or(0, |queue| queue.len());
        let records = |sealed: &Sealed| sealed.bytes.len().div_ceil(sealed.segment_bytes);
        let sealed: usize = self.sealed.iter().map(records).sum();
        stats.dropped_down.add((waiting + sealed) as u64, self.queue_bytes() as u64);
    }

    /// Sets the most bytes of a record.
    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Most bytes of an item, which is a record without header and tag.
    pub fn item_limit(&self) -> usize {
        self.limit_bytes.saturating_sub(self.sealer.suite().overhead_bytes())
    }

    /// The length of the shortest datagram that the host refused with EMSGSIZE since the last call.
    pub fn take_too_long(&mut self) -> Option<usize> {
        self.too_long.take()
    }

    /// Sets the measurements of the path: `loss` is the share of datagrams that it loses, 0 to 1;
    /// `bytes_per_s` its rate if that is known.
    pub fn set_path(&mut self, loss: f64, bytes_per_s: Option<u64>) {
        self.unit_datagrams = unit::datagrams(loss);
        self.packer.set_link_rate(bytes_per_s);
    }

    /// See [`Packer::decision`].
    pub fn decision(&self, flow: u64, policy: &Policy) -> Option<(u64, Decision)> {
        self.packer.decision(flow, policy)
    }

    /// Adds a frame to the batch, compressed if its policy says so and that pays. If other frames
    /// wait, it is queued behind them. `scratch` is for a frame that does not lie in one piece.
    pub fn frame(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) {
        if self.is_blocked() || self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
            self.queue(context, frame, compression, scratch);
        } else {
            let whole = frame.in_one_piece(scratch);
            self.whole(context, &whole, || frame.flow(), compression);
        }
    }

    /// Queues a frame. On a slow path a super-packet is queued in pieces: a drop then costs its
    /// flow less, and other flows wait for a shorter time.
    fn queue(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) {
        let queue =
            self.queue.get_or_insert_with(|| Box::new(FairQueue::new(QueueLimits::default())));
        let (flow, unit_bytes) = (frame.flow(), queue.unit_bytes());
        let Frame { way, label, .. } = *frame;
        let mut push = |offload, bytes: Vec<u8>| {
            let (length, compression) = (bytes.len(), compression.clone());
            let waiting = QueuedFrame { offload, way, label, bytes, flow, compression };
            queue.push(flow, length, waiting, context.now_ns);
        };
        match pieces_of(frame, unit_bytes, scratch) {
            Some(pieces) => pieces.for_each(|(offload, piece)| push(offload, piece)),
            None => {
                let mut bytes = Vec::with_capacity(frame.bytes);
                frame.gather_into(&mut bytes);
                push(frame.offload, bytes);
            }
        }
        self.count_dropped(context.stats);
    }

    /// Sends what waits, as far as the socket has room.
    pub fn go_on(&mut self, context: SendContext<'_>) {
        while let Some(sealed) = self.sealed.pop_front() {
            let Sealed { segment_bytes, mark, .. } = sealed;
            let done = self.transmit(context.stats, &sealed.bytes, segment_bytes, mark);
            if done < sealed.bytes.len() {
                let bytes = sealed.bytes[done..].to_vec();
                self.sealed.push_front(Sealed { bytes, ..sealed });
                return;
            }
        }
        while !self.is_blocked()
            && let Some(waiting) = self.queue.as_mut().and_then(|queue| queue.pop(context.now_ns))
        {
            let QueuedFrame { offload, way, label, bytes, flow, compression } = waiting;
            let headers = Headers::of(&bytes);
            let whole = WholeFrame { offload, way, label, headers, bytes: &bytes };
            self.whole(context, &whole, || flow, &compression);
        }
        self.flush(context);
        self.count_dropped(context.stats);
        self.bound_held();
    }

    /// Counts the frames that the queue has dropped since the last call.
    fn count_dropped(&mut self, stats: &PeerStats) {
        let Some(queue) = &self.queue else { return };
        let now = queue.stats();
        let before = std::mem::replace(&mut self.queue_stats, now);
        stats.count_queue_drops(before, now);
    }

    /// Sets the socket's send buffer by the rate at which the queue drains.
    fn bound_held(&mut self) {
        let (Some(socket), Some(queue)) = (&self.socket, &self.queue) else { return };
        let rate = queue.rate_bytes_per_s();
        if rate == self.held_for_bytes_per_s {
            return;
        }
        self.held_for_bytes_per_s = rate;
        if let Some(rate) = rate {
            let bytes = usize::try_from(rate / HELD_PARTS_OF_SECOND).unwrap_or(usize::MAX);
            socket.hold_at_most(bytes.clamp(LEAST_HELD_BYTES, MOST_HELD_BYTES));
            self.batch_bytes = queue.unit_bytes().min(MAX_SEND_BYTES);
        }
    }

    /// Adds a frame that lies in one piece to the batch.
    fn whole(
        &mut self,
        context: SendContext<'_>,
        whole: &WholeFrame<'_>,
        flow: impl FnOnce() -> u64,
        compression: &Compression,
    ) {
        let before = self.sealed_bytes;
        let needs_flow = self.outer.flow_label || compression.policy.is_some();
        let flow = if needs_flow { flow() } else { 0 };
        self.frame_mark = self.mark_of(whole, flow);
        self.frame_label = whole.label;
        let in_units = match (&compression.policy, &whole.headers) {
            (Some(policy), Some(headers)) => {
                let how = UnitsOf { flow, policy, rule_stats: &compression.rule_stats };
                self.units(context, whole, headers, how)
            }
            _ => false,
        };
        if !in_units {
            self.as_it_is(context, whole);
        }
        compression.rule_stats.wire_bytes.add(self.sealed_bytes - before);
    }

    /// Traffic class and flow label of a frame's datagrams.
    fn mark_of(&self, whole: &WholeFrame<'_>, flow: u64) -> Mark {
        let OuterConfig { dscp, ecn, flow_label } = self.outer;
        let class = Copied { dscp, ecn }.outer(class_of(whole.headers.as_ref(), whole.bytes));
        // Records of one batch have one label, so few labels keep batches large.
        let label = if flow_label { 1 + (flow % FLOW_LABELS) as u32 } else { 0 };
        Mark { class, label }
    }

    /// Adds a frame whole, or in segments, or in fragments.
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

    /// Sends a TCP frame in compressed units. Returns `false`, and sends nothing, if the frame
    /// cannot be cut or is too short.
    ///
    /// A part that does not become smaller is sent as a frame of its own, so that the receiver gets
    /// each byte once and in order.
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
        // `Split` also checks that the frame may be cut, and its checksum.
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
            // Each part has the headers; they count once for the frame.
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
        // The layers have the same offsets as in the whole frame.
        let headers = Some(Headers { end: piece.len() as u32, ..*headers });
        self.as_it_is(context, &WholeFrame { offload, headers, bytes: &piece, ..*frame });
    }

    /// Sends a compressed unit, in parts if it is longer than a record.
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

    /// Sends a frame in fragments.
    fn fragments(&mut self, context: SendContext<'_>, frame: &WholeFrame<'_>) {
        let id = self.next_fragment;
        let part_bytes = self.item_limit().saturating_sub(FRAGMENT_HEADER_BYTES);
        self.next_fragment = id.wrapping_add(1);
        let fragments = Fragments::new(id, frame.bytes, part_bytes);
        let header = |fragment| fragment_header(frame.offload, fragment, frame.way);
        self.in_parts(context, frame.bytes.len(), fragments, header);
    }

    /// Sends each part as an item with its header. `fragments` is `None` if there would be more
    /// than the format can number: then `bytes` are counted as dropped.
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

    /// Adds one item to the batch. Drops and counts one that is longer than the batch, which is an
    /// error of the caller.
    fn item(&mut self, context: SendContext<'_>, parts: &[&[u8]]) {
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

    /// Sends an item at once, ahead of the queue, in a datagram of its own, padded to `pad_to`
    /// bytes. It leaves by the link's socket, which carries no frames. `to` replaces the session's
    /// address.
    pub fn alone(
        &mut self,
        context: SendContext<'_>,
        item: &[u8],
        pad_to: usize,
        to: Option<Endpoints>,
    ) {
        let SendContext { udp, stats, .. } = context;
        // Without it, traffic that a VM marks as urgent delays probes, and the peer seems down.
        let class = if self.outer.dscp { CONTROL_CLASS } else { 0 };
        let control_mark = Mark { class, ..Mark::default() };
        let record_bytes = pad_to.max(item.len() + self.sealer.suite().overhead_bytes());
        let mut record = std::mem::take(&mut self.control);
        record.clear();
        record.resize(HEADER_BYTES, 0);
        record.extend_from_slice(item);
        record.resize(record_bytes, 0);
        if stats.seal.time(|| self.sealer.seal(&mut record)) {
            let mut other = to.map(Destination::new);
            let destination = other.as_mut().or(self.destination.as_mut());
            let sent = destination.map(|to| {
                to.mark = control_mark;
                udp.send(to, &record, record_bytes)
            });
            self.count(stats, sent, record_bytes, record_bytes);
        } else {
            stats.dropped_send.add(1, record_bytes as u64);
        }
        self.control = record;
    }

    /// Sends the batch if a record of this size cannot be added to it.
    fn make_room(&mut self, context: SendContext<'_>, record_bytes: usize) {
        let last_was_shorter = self.length != self.count * self.segment_bytes;
        if self.count > 0
            && (last_was_shorter
                || self.mark != self.frame_mark
                || record_bytes > self.segment_bytes
                || self.count == MAX_SEGMENTS
                || self.length + record_bytes > self.batch_bytes)
        {
            self.flush(context);
        }
    }

    /// Seals the record at the end of the batch, and makes it part of the batch.
    fn seal(&mut self, stats: &PeerStats, record_bytes: usize) {
        let record = &mut self.buffer[self.length..self.length + record_bytes];
        let label = self.frame_label;
        if !stats.seal.time(|| self.sealer.seal_labelled(record, label)) {
            stats.dropped_send.add(1, record_bytes as u64);
            return;
        }
        if self.count == 0 {
            self.segment_bytes = record_bytes;
            self.mark = self.frame_mark;
        }
        self.length += record_bytes;
        self.count += 1;
        self.sealed_bytes += record_bytes as u64;
    }

    /// Sends the batch, and keeps the records that the socket has no room for.
    pub fn flush(&mut self, context: SendContext<'_>) {
        if self.count == 0 {
            return;
        }
        let buffer = std::mem::take(&mut self.buffer);
        let (bytes, segment_bytes) = (&buffer[..self.length], self.segment_bytes);
        let mark = self.mark;
        let done = if self.is_blocked() {
            0
        } else {
            self.transmit(context.stats, bytes, segment_bytes, mark)
        };
        if done < bytes.len() {
            self.sealed.push_back(Sealed { bytes: bytes[done..].to_vec(), segment_bytes, mark });
        }
        self.buffer = buffer;
        self.length = 0;
        self.count = 0;
    }

    /// Gives records to the socket. Returns the number of leading bytes that were sent or refused;
    /// the socket has no room for the rest.
    fn transmit(
        &mut self,
        stats: &PeerStats,
        bytes: &[u8],
        segment_bytes: usize,
        mark: Mark,
    ) -> usize {
        let sent = match (&self.socket, &mut self.destination) {
            (Some(socket), Some(to)) => {
                (to.mark, to.gso) = (mark, self.gso);
                Some(socket.send(to, bytes, segment_bytes))
            }
            _ => None,
        };
        match sent {
            Some(Ok(sent)) if sent < bytes.len() => {
                self.count(stats, Some(Ok(sent)), sent, segment_bytes);
                sent
            }
            sent => {
                self.count(stats, sent, bytes.len(), segment_bytes);
                bytes.len()
            }
        }
    }

    /// Counts `bytes` of records as sent or dropped. `sent` is `None` if the session has no address
    /// or no socket yet.
    fn count(
        &mut self,
        stats: &PeerStats,
        sent: Option<io::Result<usize>>,
        bytes: usize,
        segment_bytes: usize,
    ) {
        let (records, bytes) = (bytes.div_ceil(segment_bytes) as u64, bytes as u64);
        if let Some(Err(error)) = &sent
            && error.raw_os_error() == Some(libc::EMSGSIZE)
        {
            // The kernel does not say which of them were too long; the longest was.
            let shorter = self.too_long.map_or(segment_bytes, |bytes| bytes.min(segment_bytes));
            self.too_long = Some(shorter);
        }
        if sent.is_some_and(|sent| sent.is_ok_and(|sent| sent as u64 == bytes)) {
            stats.records_out.add(records);
            stats.wire_bytes_out.add(bytes);
            self.counts.sent_packets.add(records);
            self.counts.sent_bytes.add(bytes);
        } else {
            stats.dropped_send.add(records, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::udp_port::UdpPort;
    use vsnoop_link::compress::{Method, Owner};
    use vsnoop_link::wire::seal::{Material, Suite};
    use vsnoop_packet::testing::SegmentBuilder;

    #[test]
    fn a_class_has_the_bytes_on_the_wire_that_its_frames_became_compressed_or_not() {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let (port, far) = (UdpPort::bind(here, 1), std::net::UdpSocket::bind(here));
        let (socket, far) = (port.unwrap().receivers.remove(0), far.unwrap().local_addr().unwrap());
        let sealer = Sealer::new(Suite::Plain, &Material { key: [1; 32], nonce: [2; 12] }, 1, 0, 0);
        let mut datagrams =
            DatagramSender::new(sealer, Some(far), 1472, Codecs::ALL, Arc::default());
        datagrams.open(socket.sender().unwrap());
        let stats = PeerStats::default();
        let policy = Policy { method: Method::Lz4, owner: Owner::Named(0), dictionary: None };
        let compressions =
            [None, Some(policy)].map(|policy| Compression { policy, rule_stats: Arc::default() });
        let mut frame = SegmentBuilder { payload: 1300, ..SegmentBuilder::default() }.build();
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

    /// A sender for a far socket, and that.
    fn ends() -> (Arc<UdpSocket>, DatagramSender, std::net::UdpSocket) {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let (port, far) = (UdpPort::bind(here, 1), std::net::UdpSocket::bind(here));
        let (socket, far) = (port.unwrap().receivers.remove(0), far.unwrap());
        let sealer = Sealer::new(Suite::Plain, &Material { key: [1; 32], nonce: [2; 12] }, 1, 0, 0);
        let to = far.local_addr().unwrap();
        let mut datagrams =
            DatagramSender::new(sealer, Some(to), 1472, Codecs::ALL, Arc::default());
        datagrams.open(socket.sender().unwrap());
        (socket, datagrams, far)
    }

    #[test]
    fn frames_wait_for_room_each_flow_in_its_turn_and_messages_do_not() {
        let (socket, mut datagrams, far) = ends();
        let stats = PeerStats::default();
        let context = SendContext { udp: &socket, stats: &stats, now_ns: 0 };
        let compression = Compression { policy: None, rule_stats: Arc::default() };
        let send = |datagrams: &mut DatagramSender, port: u16, number: u8| {
            let mut frame =
                SegmentBuilder { port, payload: 1000, ..SegmentBuilder::default() }.build();
            *frame.last_mut().unwrap() = number;
            let parts = [&frame[..]];
            let frame = Frame::whole(OffloadState::default(), &parts);
            datagrams.frame(context, &frame, &compression, &mut Vec::new());
        };
        // As if the socket had had no room for it.
        datagrams.sealed.push_back(Sealed {
            bytes: b"before".to_vec(),
            segment_bytes: 6,
            mark: Mark::default(),
        });
        for number in 0..10 {
            send(&mut datagrams, 1, number);
        }
        send(&mut datagrams, 2, 77);
        datagrams.flush(context);
        assert!(datagrams.is_blocked() && datagrams.queue_bytes() > 11 * 1000);
        datagrams.alone(context, b"probe", 0, None);
        datagrams.go_on(context);
        assert!(!datagrams.is_blocked() && datagrams.queue_bytes() == 0);
        let mut buffer = [0; 2048];
        let mut receive = || {
            let length = far.recv(&mut buffer).unwrap();
            buffer[..length].to_vec()
        };
        assert!(receive().ends_with(b"probe"));
        assert_eq!(receive(), b"before");
        let numbers: Vec<_> = (0..11).map(|_| *receive().last().unwrap()).collect();
        let position = numbers.iter().position(|number| *number == 77).unwrap();
        assert!(position <= 2, "the second flow waits for the first: {numbers:?}");
        let first: Vec<_> = numbers.into_iter().filter(|number| *number != 77).collect();
        assert!(first.iter().copied().eq(0..10), "{first:?}");
    }

    #[test]
    fn what_waits_at_the_end_or_beyond_the_bound_is_counted() {
        let (socket, mut datagrams, _far) = ends();
        let stats = PeerStats::default();
        let context = SendContext { udp: &socket, stats: &stats, now_ns: 0 };
        let compression = Compression { policy: None, rule_stats: Arc::default() };
        datagrams.sealed.push_back(Sealed {
            bytes: vec![0; 250],
            segment_bytes: 100,
            mark: Mark::default(),
        });
        let frame = SegmentBuilder { payload: 1000, ..SegmentBuilder::default() }.build();
        let (parts, most) = ([&frame[..]], QueueLimits::default().packets as u64);
        for _ in 0..most + 5 {
            let frame = Frame::whole(OffloadState::default(), &parts);
            datagrams.frame(context, &frame, &compression, &mut Vec::new());
        }
        assert_eq!(stats.dropped_full.frames.get(), 5);
        datagrams.count_waiting_as_dropped(&stats);
        assert_eq!(stats.dropped_down.frames.get(), most + 3);
        assert_eq!(stats.dropped_down.bytes.get(), most * frame.len() as u64 + 250);
    }
}
