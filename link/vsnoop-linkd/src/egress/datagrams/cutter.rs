//! Cuts frames into items that each fit a datagram, and compresses what pays.

use std::ops::Range;

use super::sender::FrameRecords;
use crate::counters::cpu::coding_clock;
use crate::counters::stats::RuleStats;
use crate::frames::compression_policy::Compression;
use crate::frames::frame::WholeFrame;
use vsnoop_link::compress::unit::{self, Cut, Packer};
use vsnoop_link::compress::{Codecs, Decision, Encoded, Policy};
use vsnoop_link::wire::fragment::{Fragment, Fragments};
use vsnoop_link::wire::item::{
    FRAME_HEADER_BYTES, FrameHeader, fragment_header, unit_header, unit_part_header,
};
use vsnoop_packet::headers::{FlowHash, Headers};
use vsnoop_packet::offload::restore::restore;
use vsnoop_packet::offload::split::Split;
use vsnoop_packet::offload::state::{Gso, GsoKind, OffloadState};

/// Most bytes of padding: more would cost more than another system call.
const WORTH_PADDING_BYTES: usize = 64;
/// Header of a fragment's item.
const FRAGMENT_HEADER_BYTES: usize = 8;
const UNIT_HEADER_BYTES: usize = 8;
const UNIT_PART_HEADER_BYTES: usize = 5;
/// Least payload that is compressed.
const WORTH_COMPRESSING_BYTES: usize = 200;

/// How a frame is compressed in units.
struct HowCompressed<'a> {
    flow: FlowHash,
    policy: &'a Policy,
    rule_stats: &'a RuleStats,
}

pub struct Cutter {
    next_fragment: u16,
    next_unit: u16,
    unit_datagrams: usize,
    packer: Packer,
    body: Vec<u8>,
}

impl Cutter {
    /// `accepted`: codecs that the receiver decompresses.
    pub fn new(accepted: Codecs) -> Self {
        Self {
            next_fragment: 0,
            next_unit: 0,
            unit_datagrams: unit::count_datagrams(0.0),
            packer: Packer::new(accepted, coding_clock()),
            body: Vec::new(),
        }
    }

    /// Sets the measurements of the path: `loss` is the share of datagrams that it loses, 0 to 1;
    /// `bytes_per_s` its rate if that is known.
    pub fn set_path(&mut self, loss: f64, bytes_per_s: Option<u64>) {
        self.unit_datagrams = unit::count_datagrams(loss);
        self.packer.set_link_rate(bytes_per_s);
    }

    /// See [`Packer::find_decision`].
    pub fn find_decision(&self, flow: FlowHash, policy: &Policy) -> Option<(u64, Decision)> {
        self.packer.find_decision(flow, policy)
    }

    /// Adds a frame to `out`, compressed if its policy says so and that pays.
    pub fn cut_frame(
        &mut self,
        out: &mut FrameRecords<'_>,
        frame: &WholeFrame<'_>,
        flow: FlowHash,
        compression: &Compression,
    ) {
        let is_compressed = match (&compression.policy, &frame.headers) {
            (Some(policy), Some(headers)) => {
                let how = HowCompressed { flow, policy, rule_stats: &compression.rule_stats };
                self.compress_frame(out, frame, headers, how)
            }
            _ => false,
        };
        if !is_compressed {
            self.cut_uncompressed(out, frame);
        }
    }

    /// Adds a frame whole, or in segments, or in fragments.
    fn cut_uncompressed(&mut self, out: &mut FrameRecords<'_>, frame: &WholeFrame<'_>) {
        let WholeFrame { offload, way, bytes, .. } = *frame;
        let limit = out.item_limit();
        let room = limit.saturating_sub(FRAME_HEADER_BYTES);
        if offload.gso.is_none() && bytes.len() <= room {
            let header = FrameHeader::new(offload, way);
            out.add_item(&[header.bytes(), bytes]);
            return;
        }
        let headers = frame.headers.as_ref();
        let split = headers.and_then(|headers| Split::new(offload, headers, bytes, room));
        let Some(mut split) = split else {
            self.add_fragments(out, frame);
            return;
        };
        if split.lost_pieces() > 0 {
            out.context
                .stats
                .dropped_send
                .add(split.lost_pieces() as u64, split.lost_bytes() as u64);
        }
        let header = FrameHeader::new(OffloadState { needs_checksum: true, gso: None }, way);
        let header_bytes = header.bytes().len();
        let piece_bytes = split.piece_bytes();
        for _ in 0..split.pieces() {
            let is_written = out.add_written(header_bytes + piece_bytes, |item| {
                let (start, body) = item.split_at_mut(header_bytes);
                start.copy_from_slice(header.bytes());
                let written = split.next(body)?;
                let missing = piece_bytes - written;
                let padding = if missing <= WORTH_PADDING_BYTES { missing } else { 0 };
                body[written..written + padding].fill(0);
                Some(header_bytes + written + padding)
            });
            if !is_written {
                return;
            }
        }
    }

    /// Sends a TCP frame in compressed units. Returns `false`, and sends nothing, if the frame
    /// cannot be cut or is too short.
    ///
    /// A part that does not become smaller is sent as a frame of its own, so that the receiver gets
    /// each byte once and in order.
    fn compress_frame(
        &mut self,
        out: &mut FrameRecords<'_>,
        frame: &WholeFrame<'_>,
        headers: &Headers,
        how: HowCompressed<'_>,
    ) -> bool {
        let (payload_at, end) = (usize::from(headers.payload), headers.end as usize);
        let limit = out.item_limit();
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
        let (stats, rule_stats) = (out.context.stats, how.rule_stats);
        let mut at = 0;
        let mut body = std::mem::take(&mut self.body);
        while at < payload.len() {
            body.clear();
            let cut = Cut { head, payload: &payload[at..], granule_bytes, limit_bytes };
            let before_ns = self.packer.stats().busy_ns;
            let packed =
                self.packer.pack_frame(how.flow, how.policy, cut, out.context.now_ns, &mut body);
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
                self.add_unit(out, &unit_header(offload, at, frame.way), &body);
            } else {
                rule_stats.raw.add(1);
                self.add_raw(out, &frame, headers, at..at + taken);
            }
            at += taken;
        }
        self.body = body;
        true
    }

    /// Sends the part `range` of a super-packet's payload as it is.
    fn add_raw(
        &mut self,
        out: &mut FrameRecords<'_>,
        frame: &WholeFrame<'_>,
        headers: &Headers,
        range: Range<usize>,
    ) {
        let (head, payload) = frame.bytes.split_at(headers.payload.into());
        let mut piece = [head, &payload[range.clone()]].concat();
        let Some(offload) = restore(&mut piece, range.start, frame.offload) else { return };
        // The layers have the same offsets as in the whole frame.
        let headers = Some(Headers { end: piece.len() as u32, ..*headers });
        self.cut_uncompressed(out, &WholeFrame { offload, headers, bytes: &piece, ..*frame });
    }

    /// Sends a compressed unit, in parts if it is longer than a record.
    fn add_unit(&mut self, out: &mut FrameRecords<'_>, header: &[u8], body: &[u8]) {
        let part_room = out.item_limit() - UNIT_PART_HEADER_BYTES;
        if header.len() + body.len() <= out.item_limit() {
            out.add_item(&[header, body]);
            return;
        }
        let id = self.next_unit;
        self.next_unit = id.wrapping_add(1);
        let whole = [header, body].concat();
        let parts = Fragments::new(id, &whole, part_room);
        add_parts(out, whole.len(), parts, unit_part_header);
    }

    /// Sends a frame in fragments.
    fn add_fragments(&mut self, out: &mut FrameRecords<'_>, frame: &WholeFrame<'_>) {
        let id = self.next_fragment;
        let part_bytes = out.item_limit().saturating_sub(FRAGMENT_HEADER_BYTES);
        self.next_fragment = id.wrapping_add(1);
        let fragments = Fragments::new(id, frame.bytes, part_bytes);
        let header = |fragment| fragment_header(frame.offload, fragment, frame.way);
        add_parts(out, frame.bytes.len(), fragments, header);
    }
}

/// Sends each part as an item with its header. `fragments` is `None` if there would be more
/// than the format can number: then `bytes` are counted as dropped.
fn add_parts<H: AsRef<[u8]>>(
    out: &mut FrameRecords<'_>,
    bytes: usize,
    fragments: Option<Fragments<'_>>,
    header: impl Fn(Fragment) -> H,
) {
    let Some(fragments) = fragments else {
        out.context.stats.dropped_send.add(1, bytes as u64);
        return;
    };
    for (fragment, part) in fragments {
        out.add_item(&[header(fragment).as_ref(), part]);
    }
}
