//! Consecutive segments of a flow become one super-packet, by reference: no byte of payload moves.
//!
//! Follows the kernel's generic receive offload (`tcp_gro_receive`): segments are merged if they
//! differ in nothing but what follows from their position; only the last may be shorter; PSH and
//! FIN end a super-packet. Within a flow the order is kept always: what cannot be merged lets out
//! first what was merged before it. Across flows there is no order to keep.
//!
//! A super-packet leaves its checksum to be done, so a complete checksum is verified before its
//! segment is merged: what was corrupted on the way passes alone, and its receiver sees it.

use super::state::{Gso, GsoKind, OffloadState};
use crate::checksum::{add, complete_ipv4, ip_is_right, pseudo_header, same, transport_is_right};
use crate::format::{ACK, CWR, ECE, FIN, PSH, TCP, TCP_CHECKSUM};
use crate::headers::{FlowHash, Headers, be16, be32};
use crate::vnet::VirtioNetHdr;

/// Flows under way at once; one gives way to the next.
const FLOWS: usize = 8;
/// Frames in one super-packet.
const PARTS: usize = 64;
/// Length of an IP packet: `total_length` of IPv4, payload length of IPv6 without its header.
const IP_BYTES_LIMIT: usize = 65_535;
/// Ethernet with two tags, IPv6, TCP with all options, rounded up.
const HEAD_BYTES: usize = 128;

/// A frame to hand on: with one vectored write of `header`, `head` and `parts`.
#[derive(Debug)]
pub struct Merged<'m, 'a> {
    pub header: VirtioNetHdr,
    pub offload: OffloadState,
    /// The headers of a super-packet; empty if `parts` holds the frame unchanged.
    pub head: &'m [u8],
    pub parts: &'m [&'a [u8]],
    /// Bytes of `head` and `parts`.
    pub bytes: usize,
    /// Headers of the whole; `None`: it carries no whole IP packet.
    pub headers: Option<Headers>,
    /// The flow's hash ([`Headers::flow_hash`]), where merging has computed it.
    pub flow: Option<FlowHash>,
}

/// Merges the frames of a batch. Everything pushed is let out by [`Self::flush`] at the latest.
///
/// Bounded and without allocation: about 10 KB, meant to live on the stack for one batch.
pub struct Merger<'a> {
    flows: [OpenSuperPacket<'a>; FLOWS],
    /// Which flow gives way next, in turn.
    next: usize,
}

/// A super-packet that segments are still merged into.
struct OpenSuperPacket<'a> {
    hash: FlowHash,
    first: &'a [u8],
    headers: Headers,
    offload: OffloadState,
    /// Whether the checksum of the first segment is known to be right; put off until there is a
    /// second, since most segments stay alone in a batch of many flows.
    trusted: bool,
    /// Payload bytes of every segment but the last.
    size: usize,
    payload_bytes: usize,
    /// The sum of the pseudo-header without the length.
    pseudo: u16,
    /// PSH and FIN of the last segment.
    last_flags: u8,
    count: usize,
    /// The whole first frame while it is alone, afterwards payloads only.
    parts: [&'a [u8]; PARTS],
}

/// Fields of a segment that decide about merging; its headers are plain and within the frame.
struct ParsedSegment {
    headers: Headers,
    sequence: u32,
    flags: u8,
    bytes: usize,
    /// Payload bytes of the segments that it stands for.
    size: usize,
    is_super: bool,
}

impl ParsedSegment {
    /// `None` if it cannot be part of a super-packet, whatever came before.
    fn from_frame(offload: &OffloadState, headers: &Headers, frame: &[u8]) -> Option<Self> {
        let l4 = usize::from(headers.l4);
        let flags = *frame.get(l4 + 13)?;
        let bytes = headers.payload_bytes();
        if bytes == 0 || !headers.plain() || usize::from(headers.payload) > HEAD_BYTES {
            return None;
        }
        // A segment with any other flag is not merged.
        if flags & !(PSH | FIN | CWR | ECE) != ACK {
            return None;
        }
        let gso_size = match offload.gso {
            Some(gso) if !gso.fits(headers) => return None,
            Some(gso) => usize::from(gso.size),
            None => bytes,
        };
        Some(Self {
            headers: *headers,
            sequence: be32(frame, l4 + 4)?,
            flags,
            bytes,
            size: gso_size.min(bytes),
            is_super: bytes > gso_size,
        })
    }

    /// Whether nothing can be merged after it in a super-packet with segments of `size`.
    fn ends(&self, size: usize) -> bool {
        self.flags & (PSH | FIN) != 0 || !self.bytes.is_multiple_of(size)
    }
}

impl Default for Merger<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Merger<'a> {
    pub const fn new() -> Self {
        Self { flows: [const { OpenSuperPacket::EMPTY }; FLOWS], next: 0 }
    }

    /// Takes the next frame; `emit` gets what is thereby complete, or cannot be merged.
    ///
    /// The bytes of `frame` stay where they are until they were let out.
    pub fn push(
        &mut self,
        offload: OffloadState,
        frame: &'a [u8],
        emit: &mut dyn FnMut(Merged<'_, 'a>),
    ) {
        self.push_parsed(offload, Headers::parse(frame), frame, emit);
    }

    /// Takes a frame as [`Self::push`] does, whose headers have been parsed: `headers` is
    /// [`Headers::parse`] of it.
    pub fn push_parsed(
        &mut self,
        offload: OffloadState,
        headers: Option<Headers>,
        frame: &'a [u8],
        emit: &mut dyn FnMut(Merged<'_, 'a>),
    ) {
        let Some(headers) = headers else { return pass(offload, None, None, frame, emit) };
        if !headers.tcp() {
            // A fragment or a broken header may belong to any flow.
            if headers.protocol == TCP {
                self.flush(emit);
            }
            return pass(offload, Some(headers), None, frame, emit);
        }
        let hash = headers.flow_hash(frame);
        let segment = ParsedSegment::from_frame(&offload, &headers, frame);
        if let Some(flow) = self.flows.iter_mut().find(|flow| flow.is(hash, &headers, frame)) {
            if let Some(segment) = &segment
                && flow.takes(segment, &offload, frame)
            {
                flow.add(segment, frame);
                if segment.ends(flow.size) {
                    flow.finish(emit);
                }
                return;
            }
            flow.finish(emit);
        }
        match segment {
            Some(segment) if !segment.ends(segment.size) => {
                let flow = match self.flows.iter_mut().position(|flow| flow.count == 0) {
                    Some(free) => &mut self.flows[free],
                    None => {
                        let oldest = self.next;
                        self.next = (self.next + 1) % FLOWS;
                        self.flows[oldest].finish(emit);
                        &mut self.flows[oldest]
                    }
                };
                flow.start(hash, &segment, offload, frame);
            }
            _ => pass(offload, Some(headers), Some(hash), frame, emit),
        }
    }

    /// Lets out everything.
    pub fn flush(&mut self, emit: &mut dyn FnMut(Merged<'_, 'a>)) {
        for flow in &mut self.flows {
            flow.finish(emit);
        }
    }
}

/// Hands on a frame as it came.
fn pass<'a>(
    offload: OffloadState,
    headers: Option<Headers>,
    flow: Option<FlowHash>,
    frame: &'a [u8],
    emit: &mut dyn FnMut(Merged<'_, 'a>),
) {
    emit(Merged {
        header: offload.header(headers.as_ref(), frame.len()),
        offload,
        head: &[],
        parts: &[frame],
        bytes: frame.len(),
        headers,
        flow,
    });
}

impl<'a> OpenSuperPacket<'a> {
    const EMPTY: Self = Self {
        hash: FlowHash(0),
        first: &[],
        headers: Headers {
            ip: 0,
            l4: 0,
            payload: 0,
            end: 0,
            v6: false,
            protocol: 0,
            fragment: false,
            tags: 0,
        },
        offload: OffloadState { needs_checksum: false, gso: None },
        trusted: false,
        size: 0,
        payload_bytes: 0,
        pseudo: 0,
        last_flags: 0,
        count: 0,
        parts: [&[]; PARTS],
    };

    /// Whether a segment with these headers is of this flow: Ethernet header, addresses, ports.
    fn is(&self, hash: FlowHash, headers: &Headers, frame: &[u8]) -> bool {
        let (ip, l4) = (usize::from(headers.ip), usize::from(headers.l4));
        self.count > 0
            && self.hash == hash
            && self.headers.ip == headers.ip
            && self.headers.v6 == headers.v6
            && self.first[..ip] == frame[..ip]
            && self.headers.addresses(self.first) == headers.addresses(frame)
            && self.first[usize::from(self.headers.l4)..][..4] == frame[l4..][..4]
    }

    fn start(
        &mut self,
        hash: FlowHash,
        segment: &ParsedSegment,
        offload: OffloadState,
        frame: &'a [u8],
    ) {
        self.hash = hash;
        self.first = frame;
        self.headers = segment.headers;
        self.offload = offload;
        self.trusted = false;
        self.size = segment.size;
        self.payload_bytes = segment.bytes;
        self.last_flags = 0;
        self.count = 1;
        self.parts[0] = frame;
    }

    /// Whether a segment of this flow may be merged now.
    fn takes(&mut self, segment: &ParsedSegment, offload: &OffloadState, frame: &[u8]) -> bool {
        let headers = &segment.headers;
        let (ip, l4, payload) =
            (usize::from(headers.ip), usize::from(headers.l4), usize::from(headers.payload));
        let first = self.first;
        let fits = self.count < PARTS
            && payload - l4 + self.payload_bytes + segment.bytes
                <= IP_BYTES_LIMIT - if headers.v6 { 0 } else { l4 - ip };
        let size_goes_on =
            if segment.is_super { segment.size == self.size } else { segment.bytes <= self.size };
        if !fits
            || !size_goes_on
            || headers.l4 != self.headers.l4
            || headers.payload != self.headers.payload
            || segment.flags & CWR != 0
        {
            return false;
        }
        let Some(sequence) = be32(first, l4 + 4) else { return false };
        let aside = PSH | FIN | CWR;
        let network_is_same = if headers.v6 {
            // Version, class, flow label; next header and hop limit.
            first[ip..ip + 4] == frame[ip..ip + 4] && first[ip + 6..ip + 8] == frame[ip + 6..ip + 8]
        } else {
            // Version and TOS; fragment word and TTL.
            first[ip..ip + 2] == frame[ip..ip + 2]
                && first[ip + 6..ip + 9] == frame[ip + 6..ip + 9]
                && self.identification_goes_on(frame, ip)
        };
        network_is_same
            && sequence.wrapping_add(self.payload_bytes as u32) == segment.sequence
            // Acknowledgement number, header length, window, options.
            && first[l4 + 8..l4 + 13] == frame[l4 + 8..l4 + 13]
            && (first[l4 + 13] ^ segment.flags) & !aside == 0
            && first[l4 + 14..l4 + 16] == frame[l4 + 14..l4 + 16]
            && first[l4 + 20..payload] == frame[l4 + 20..payload]
            && self.first_is_trusted()
            && is_trusted(self.pseudo, headers, offload, frame)
    }

    /// With DF the identification means nothing (RFC 6864); else it counts segments.
    fn identification_goes_on(&self, frame: &[u8], ip: usize) -> bool {
        let segments = self.payload_bytes.div_ceil(self.size) as u16;
        frame[ip + 6] & 0x40 != 0
            || be16(self.first, ip + 4).map(|id| id.wrapping_add(segments)) == be16(frame, ip + 4)
    }

    fn first_is_trusted(&mut self) -> bool {
        if !self.trusted {
            self.pseudo = pseudo_header(&self.headers, self.first);
            self.trusted = is_trusted(self.pseudo, &self.headers, &self.offload, self.first);
        }
        self.trusted
    }

    fn add(&mut self, segment: &ParsedSegment, frame: &'a [u8]) {
        let payload = usize::from(self.headers.payload);
        if self.count == 1 {
            self.parts[0] = &self.first[payload..self.headers.end as usize];
        }
        self.parts[self.count] = &frame[payload..segment.headers.end as usize];
        self.count += 1;
        self.payload_bytes += segment.bytes;
        self.last_flags = segment.flags & (PSH | FIN);
    }

    /// Lets out what there is, if anything.
    fn finish(&mut self, emit: &mut dyn FnMut(Merged<'_, 'a>)) {
        match std::mem::take(&mut self.count) {
            0 => {}
            1 => pass(self.offload, Some(self.headers), Some(self.hash), self.first, emit),
            count => {
                let mut space = [0; HEAD_BYTES];
                let payload = usize::from(self.headers.payload);
                let head = &mut space[..payload];
                head.copy_from_slice(&self.first[..payload]);
                self.rewrite(head);
                let offload = OffloadState {
                    needs_checksum: true,
                    gso: Some(Gso {
                        kind: if self.headers.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 },
                        size: self.size as u16,
                        ecn: head[usize::from(self.headers.l4) + 13] & CWR != 0,
                    }),
                };
                emit(Merged {
                    header: offload.header(Some(&self.headers), payload + self.payload_bytes),
                    offload,
                    head,
                    parts: &self.parts[..count],
                    bytes: payload + self.payload_bytes,
                    headers: Some(Headers {
                        end: (payload + self.payload_bytes) as u32,
                        ..self.headers
                    }),
                    flow: Some(self.hash),
                });
            }
        }
    }

    /// Turns the headers of the first segment into those of the whole.
    fn rewrite(&self, head: &mut [u8]) {
        let (ip, l4) = (usize::from(self.headers.ip), usize::from(self.headers.l4));
        let tcp_bytes = head.len() - l4 + self.payload_bytes;
        let mut put = |at: usize, value: u16| {
            head[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        put(l4 + usize::from(TCP_CHECKSUM), add(self.pseudo, tcp_bytes as u16));
        if self.headers.v6 {
            put(ip + 4, tcp_bytes as u16);
        } else {
            put(ip + 2, (l4 - ip + tcp_bytes) as u16);
            complete_ipv4(&mut head[ip..l4]);
        }
        head[l4 + 13] |= self.last_flags;
    }
}

/// Whether the bytes of a segment may pass under a checksum that is yet to be done.
fn is_trusted(pseudo: u16, headers: &Headers, offload: &OffloadState, frame: &[u8]) -> bool {
    let field = usize::from(headers.l4 + TCP_CHECKSUM);
    let tcp_bytes = headers.end - u32::from(headers.l4);
    ip_is_right(headers, frame)
        && if offload.needs_checksum {
            be16(frame, field).is_some_and(|held| same(held, add(pseudo, tcp_bytes as u16)))
        } else {
            transport_is_right(headers, frame)
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::complete;
    use crate::offload::Split;
    use crate::testing::SegmentBuilder;

    /// A merged frame: its offload state and its bytes.
    type Out = (OffloadState, Vec<u8>);

    fn merge(frames: &[(OffloadState, Vec<u8>)]) -> Vec<Out> {
        let mut out = Vec::new();
        let mut emit = |merged: Merged<'_, '_>| {
            let mut bytes = merged.head.to_vec();
            merged.parts.iter().for_each(|part| bytes.extend_from_slice(part));
            assert_eq!(bytes.len(), merged.bytes);
            // What is handed on is what parsing and hashing it again would give.
            let headers = Headers::parse(&bytes);
            assert_eq!(merged.header, merged.offload.header(headers.as_ref(), merged.bytes));
            assert_eq!(merged.headers, headers);
            if let Some(flow) = merged.flow {
                assert_eq!(Some(flow), headers.map(|headers| headers.flow_hash(&bytes)));
            }
            out.push((merged.offload, bytes));
        };
        let mut merger = Merger::new();
        for (offload, frame) in frames {
            merger.push(*offload, frame, &mut emit);
        }
        merger.flush(&mut emit);
        out
    }

    /// Consecutive segments of these sizes with complete checksums.
    fn run(spec: &SegmentBuilder, sizes: &[usize]) -> Vec<(OffloadState, Vec<u8>)> {
        let mut next = spec.clone();
        sizes
            .iter()
            .map(|size| {
                next.payload = *size;
                let frame = next.build();
                next.sequence = next.sequence.wrapping_add(*size as u32);
                next.identification = next.identification.wrapping_add(1);
                (OffloadState::default(), frame)
            })
            .collect()
    }

    fn sizes(out: &[Out]) -> Vec<(usize, u16)> {
        out.iter()
            .map(|(offload, frame)| {
                let headers = Headers::parse(frame).expect("IP");
                (headers.payload_bytes(), offload.gso.map_or(0, |gso| gso.size))
            })
            .collect()
    }

    #[test]
    fn a_super_packet_survives_the_way_through_pieces() {
        for v6 in [false, true] {
            for tags in 0..3 {
                for flags in [ACK, ACK | PSH, ACK | FIN, ACK | CWR] {
                    let payload = if v6 { 65_535 - 32 } else { 65_535 - 52 };
                    let spec =
                        SegmentBuilder { v6, tags, payload, flags, ..SegmentBuilder::default() };
                    let (header, frame) = spec.partial(Some(1448));
                    let offload = OffloadState::from_header(&header).expect("understood");
                    let headers = Headers::parse(&frame).expect("IP");
                    let mut split =
                        Split::new(offload, &headers, &frame, 1448).expect("can be cut");
                    let mut pieces = Vec::new();
                    let mut out = vec![0; split.piece_bytes()];
                    while let Some(length) = split.next(&mut out) {
                        pieces.push((Split::OFFLOAD, out[..length].to_vec()));
                    }
                    let merged = merge(&pieces);
                    assert_eq!(merged.len(), 1, "{flags:x}");
                    assert_eq!(merged[0].1, frame);
                    let gso = merged[0].0.gso.expect("a super-packet");
                    assert_eq!(gso.ecn, flags & CWR != 0);
                }
            }
        }
    }

    #[test]
    fn a_guest_without_offloads_is_coalesced() {
        for v6 in [false, true] {
            let spec =
                SegmentBuilder { v6, sequence: u32::MAX - 2000, ..SegmentBuilder::default() };
            let merged = merge(&run(&spec, &[1000, 1000, 1000, 500]));
            assert_eq!(sizes(&merged), [(3500, 1000)]);
            let (offload, mut frame) = merged.into_iter().next().expect("one");
            assert!(offload.needs_checksum);
            complete(&mut frame);
            assert_eq!(frame, SegmentBuilder { payload: 3500, ..spec }.build());
        }
    }

    #[test]
    fn only_the_last_segment_may_be_shorter_and_none_larger() {
        let spec = SegmentBuilder::default();
        let merged = merge(&run(&spec, &[1000, 1000, 500, 1000, 1000, 1001, 1001]));
        assert_eq!(sizes(&merged), [(2500, 1000), (2000, 1000), (2002, 1001)]);
    }

    #[test]
    fn a_corrupted_segment_passes_alone_and_unchanged() {
        let mut frames = run(&SegmentBuilder::default(), &[1000; 5]);
        let end = frames[2].1.len();
        frames[2].1[end - 1] ^= 1;
        let merged = merge(&frames);
        assert_eq!(sizes(&merged), [(2000, 1000), (1000, 0), (2000, 1000)]);
        assert_eq!(merged[1].1, frames[2].1);
        let mut frames = run(&SegmentBuilder::default(), &[1000; 3]);
        frames[0].1[100] ^= 1;
        assert_eq!(sizes(&merge(&frames)), [(1000, 0), (2000, 1000)]);
    }

    #[test]
    fn segments_that_differ_in_a_header_are_not_merged() {
        let spec = SegmentBuilder::default();
        let next = SegmentBuilder {
            sequence: spec.sequence + 1000,
            identification: 8,
            payload: 1000,
            ..spec
        };
        let first = SegmentBuilder { payload: 1000, ..SegmentBuilder::default() };
        let two = |second: SegmentBuilder| {
            merge(&[
                (OffloadState::default(), first.build()),
                (OffloadState::default(), second.build()),
            ])
            .len()
        };
        assert_eq!(two(next.clone()), 1);
        assert_eq!(two(SegmentBuilder { sequence: next.sequence + 1, ..next.clone() }), 2);
        assert_eq!(two(SegmentBuilder { sequence: next.sequence - 1, ..next.clone() }), 2);
        assert_eq!(two(SegmentBuilder { acknowledged: 78, ..next.clone() }), 2);
        assert_eq!(two(SegmentBuilder { window: 501, ..next.clone() }), 2);
        assert_eq!(two(SegmentBuilder { timestamp: 2, ..next.clone() }), 2);
        assert_eq!(two(SegmentBuilder { port: 1235, ..next.clone() }), 2);
        assert_eq!(two(SegmentBuilder { tags: 1, ..next.clone() }), 2);
        for flag in [0x02, 0x04, 0x20, 0x40, 0x80] {
            assert_eq!(
                two(SegmentBuilder { flags: ACK | flag, ..next.clone() }),
                2,
                "flag {flag:x}"
            );
        }
    }

    #[test]
    fn what_cannot_be_merged_does_not_overtake() {
        let mut frames = run(&SegmentBuilder::default(), &[1000, 1000]);
        // A pure ACK, then the stream continues.
        let bare =
            SegmentBuilder { sequence: 1_002_000, identification: 9, ..SegmentBuilder::default() };
        frames.push((OffloadState::default(), bare.build()));
        frames.extend(run(&bare, &[1000, 1000]));
        assert_eq!(sizes(&merge(&frames)), [(2000, 1000), (0, 0), (2000, 1000)]);
    }

    #[test]
    fn flows_side_by_side_are_merged_each() {
        let runs: Vec<_> = (0..FLOWS as u16)
            .map(|port| run(&SegmentBuilder { port, ..SegmentBuilder::default() }, &[1000; 4]))
            .collect();
        let mut frames = Vec::new();
        for index in 0..4 {
            frames.extend(runs.iter().map(|run| run[index].clone()));
        }
        assert_eq!(sizes(&merge(&frames)), [(4000, 1000); FLOWS]);
    }

    #[test]
    fn super_packets_are_merged_onto_each_other() {
        let spec = SegmentBuilder { payload: 3000, ..SegmentBuilder::default() };
        let (header, first) = spec.partial(Some(1000));
        let offload = OffloadState::from_header(&header).expect("understood");
        let next = SegmentBuilder { sequence: spec.sequence + 3000, ..spec };
        let (_, second) = next.partial(Some(1000));
        assert_eq!(sizes(&merge(&[(offload, first), (offload, second)])), [(6000, 1000)]);
    }

    #[test]
    fn no_super_packet_is_larger_than_an_ip_packet() {
        for v6 in [false, true] {
            let merged =
                merge(&run(&SegmentBuilder { v6, ..SegmentBuilder::default() }, &[1448; 60]));
            assert_eq!(merged.len(), 2);
            for (_, frame) in merged {
                assert!(Headers::parse(&frame).is_some_and(|headers| headers.end < 65_600));
            }
        }
        let merged = merge(&run(&SegmentBuilder::default(), &[100; 200]));
        assert_eq!(sizes(&merged), [(6400, 100), (6400, 100), (6400, 100), (800, 100)]);
    }
}
