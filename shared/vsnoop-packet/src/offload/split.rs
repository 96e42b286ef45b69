//! One TCP frame, perhaps a super-packet, as frames that are deliverable alone.
//!
//! Follows the kernel's `tcp_gso_segment`: sequence numbers and IPv4 identifications go on, FIN and
//! PSH stay on the last piece, CWR on the first. TCP is a stream of bytes, so the size of the
//! pieces is free below the sender's own; the payload is spread evenly, because a link pays per
//! datagram. The checksum of each piece stays partial: the receiver usually merges pieces
//! again.

use super::state::{OffloadState, PIECES_LIMIT};
use crate::checksum::{add, ip_is_right, pseudo_header, subtract, sum, transport_is_right};
use crate::format::{CWR, FIN, PSH, RST, SYN, TCP_CHECKSUM, URG};
use crate::headers::{Headers, be16, be32};

/// Cuts a frame into pieces, and returns them in order. Each needs its checksum and is no
/// super-packet.
#[derive(Debug)]
pub struct Split<'a> {
    frame: &'a [u8],
    headers: Headers,
    /// Payload bytes of all pieces but the last.
    size: usize,
    pieces: usize,
    /// Those that are not made.
    lost: usize,
    index: usize,
    sequence: u32,
    flags: u8,
    identification: u16,
    /// Sum of the IPv4 header without length, identification and checksum.
    ip_sum: u16,
    /// Sum of the pseudo-header without the length.
    pseudo: u16,
}

impl<'a> Split<'a> {
    /// The offload state of every piece.
    pub const OFFLOAD: OffloadState = OffloadState { needs_checksum: true, gso: None };

    /// Pieces of nearly equal size for a link, [`PIECES_LIMIT`] at most.
    ///
    /// `None` if the frame is not to be cut: no TCP or one with SYN, RST or URG, IP options, a
    /// checksum that is wrong (cutting would hide that), or a limit too small for the headers.
    pub fn new(
        offload: OffloadState,
        headers: &Headers,
        frame: &'a [u8],
        limit_bytes: usize,
    ) -> Option<Self> {
        let most = limit_bytes.checked_sub(usize::from(headers.payload)).filter(|n| *n > 0)?;
        let split = Self::of_at_most(offload, headers, frame, most, |total, most| {
            total.div_ceil(total.div_ceil(most).max(1)).max(1)
        });
        split.map(Self::limited)
    }

    /// Leaves [`PIECES_LIMIT`] of the pieces.
    fn limited(mut self) -> Self {
        self.lost = self.pieces.saturating_sub(PIECES_LIMIT);
        self.pieces -= self.lost;
        self
    }

    /// Cuts as a network card does, without a limit: all pieces but the last have `payload_bytes`
    /// of payload.
    pub fn of_size(
        offload: OffloadState,
        headers: &Headers,
        frame: &'a [u8],
        payload_bytes: usize,
    ) -> Option<Self> {
        Self::of_at_most(offload, headers, frame, payload_bytes.max(1), |_, most| most)
    }

    /// `size` makes of all payload and the largest size, in bytes, the size of pieces.
    #[inline]
    fn of_at_most(
        offload: OffloadState,
        headers: &Headers,
        frame: &'a [u8],
        mut most: usize,
        size: impl FnOnce(usize, usize) -> usize,
    ) -> Option<Self> {
        let (ip, l4) = (usize::from(headers.ip), usize::from(headers.l4));
        // The headers must be this frame's: from here on its bytes are indexed by them.
        if !headers.tcp() || !headers.plain() || frame.len() < headers.end as usize {
            return None;
        }
        let flags = frame[l4 + 13];
        if flags & (SYN | RST | URG) != 0 || !ip_is_right(headers, frame) {
            return None;
        }
        let total = headers.payload_bytes();
        if let Some(gso) = offload.gso {
            if !gso.fits(headers) {
                return None;
            }
            most = most.min(usize::from(gso.size));
        }
        let field = be16(frame, l4 + usize::from(TCP_CHECKSUM))?;
        let pseudo = if offload.needs_checksum {
            // By difference, as the kernel does: what the sender summed is not summed anew.
            subtract(field, (headers.end as usize - l4) as u16)
        } else if transport_is_right(headers, frame) {
            pseudo_header(headers, frame)
        } else {
            return None;
        };
        let size = size(total, most);
        let mut split = Self {
            frame,
            headers: *headers,
            size,
            pieces: total.div_ceil(size).max(1),
            lost: 0,
            index: 0,
            sequence: be32(frame, l4 + 4)?,
            flags,
            identification: 0,
            ip_sum: 0,
            pseudo,
        };
        if !headers.v6 {
            split.identification = be16(frame, ip + 4)?;
            let fields = add(be16(frame, ip + 2)?, split.identification);
            let fields = add(fields, be16(frame, ip + 10)?);
            split.ip_sum = subtract(sum(&frame[ip..l4]), fields);
        }
        Some(split)
    }

    /// How many pieces there are, handed out or not; at least one.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// How many more there would be without [`PIECES_LIMIT`].
    pub fn lost_pieces(&self) -> usize {
        self.lost
    }

    /// Payload bytes of the pieces that are lost.
    pub fn lost_bytes(&self) -> usize {
        self.headers.payload_bytes().saturating_sub(self.pieces * self.size)
    }

    /// Bytes of every piece but the last, which may be shorter.
    pub fn piece_bytes(&self) -> usize {
        let payload = if self.pieces == 1 { self.headers.payload_bytes() } else { self.size };
        usize::from(self.headers.payload) + payload
    }

    /// Writes the next piece to the start of `out`; returns its length.
    ///
    /// `None` after the last, or if `out` is shorter than the piece.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.index == self.pieces {
            return None;
        }
        let (ip, l4) = (usize::from(self.headers.ip), usize::from(self.headers.l4));
        let payload = usize::from(self.headers.payload);
        let begin = self.index * self.size;
        let bytes = self.size.min(self.headers.payload_bytes() - begin);
        let length = payload + bytes;
        let out = out.get_mut(..length)?;
        let (head, body) = out.split_at_mut(payload);
        head.copy_from_slice(&self.frame[..payload]);
        body.copy_from_slice(&self.frame[payload + begin..payload + begin + bytes]);

        if self.headers.v6 {
            put16(head, ip + 4, (length - l4) as u16);
        } else {
            let ip_bytes = (length - ip) as u16;
            let identification = self.identification.wrapping_add(self.index as u16);
            put16(head, ip + 2, ip_bytes);
            put16(head, ip + 4, identification);
            put16(head, ip + 10, !add(self.ip_sum, add(ip_bytes, identification)));
        }
        let sequence = self.sequence.wrapping_add(begin as u32);
        head[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
        let mut flags = self.flags;
        if self.index > 0 {
            flags &= !CWR;
        }
        if self.index + 1 < self.pieces + self.lost {
            flags &= !(FIN | PSH);
        }
        head[l4 + 13] = flags;
        let checksum = l4 + usize::from(TCP_CHECKSUM);
        put16(head, checksum, add(self.pseudo, (length - l4) as u16));
        self.index += 1;
        Some(length)
    }
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::complete;
    use crate::format::ACK;
    use crate::testing::SegmentBuilder;

    fn pieces(offload: OffloadState, frame: &[u8], limit: usize) -> Option<Vec<Vec<u8>>> {
        let headers = Headers::parse(frame).expect("IP");
        let mut split = Split::new(offload, &headers, frame, limit)?;
        let mut all = Vec::new();
        let mut out = vec![0; split.piece_bytes()];
        while let Some(length) = split.next(&mut out) {
            all.push(out[..length].to_vec());
        }
        assert_eq!(all.len(), split.pieces());
        for piece in &all[..all.len() - 1] {
            assert_eq!(piece.len(), split.piece_bytes());
        }
        Some(all)
    }

    #[test]
    fn pieces_are_what_the_sender_would_have_sent() {
        for v6 in [false, true] {
            for tags in 0..3 {
                for payload in [1, 1000, 1001, 2999, 3000, 3001, 60_000] {
                    let spec = SegmentBuilder {
                        v6,
                        tags,
                        payload,
                        sequence: u32::MAX - 1500,
                        identification: u16::MAX,
                        flags: ACK | PSH | FIN | CWR,
                        ..SegmentBuilder::default()
                    };
                    let (header, frame) = spec.partial(Some(1000));
                    let offload = OffloadState::from_header(&header).expect("understood");
                    let pieces = pieces(offload, &frame, 1400).expect("can be cut");
                    let mut next = spec.clone();
                    let count = pieces.len();
                    for (index, mut piece) in pieces.into_iter().enumerate() {
                        complete(&mut piece);
                        let headers = Headers::parse(&piece).expect("IP");
                        next.payload = headers.payload_bytes();
                        next.flags = spec.flags;
                        if index > 0 {
                            next.flags &= !CWR;
                        }
                        if index + 1 < count {
                            next.flags &= !(PSH | FIN);
                        }
                        assert!(next.payload <= 1000);
                        assert_eq!(piece, next.build(), "piece {index} of {count}");
                        next.sequence = next.sequence.wrapping_add(next.payload as u32);
                        next.identification = next.identification.wrapping_add(1);
                    }
                    assert_eq!(
                        next.sequence.wrapping_sub(spec.sequence) as usize,
                        payload,
                        "all was sent"
                    );
                }
            }
        }
    }

    #[test]
    fn a_tiny_gso_size_makes_no_flood() {
        for (size, made) in [(1, 256), (8, 256), (234, 256), (235, 256), (236, 255), (1448, 45)] {
            let payload = 60_000;
            let spec =
                SegmentBuilder { payload, flags: ACK | PSH | FIN, ..SegmentBuilder::default() };
            let (header, frame) = spec.partial(Some(size));
            let offload = OffloadState::from_header(&header).expect("understood");
            let all = pieces(offload, &frame, 1400).expect("can be cut");
            assert_eq!(all.len(), made, "{size}");
            let headers = Headers::parse(&frame).expect("IP");
            let split = Split::new(offload, &headers, &frame, 1400).expect("can be cut");
            let sent: usize = all.iter().map(|piece| piece.len() - 66).sum();
            assert_eq!(sent + split.lost_bytes(), payload);
            assert_eq!(split.lost_pieces() > 0, split.lost_bytes() > 0);
            let last = all.last().expect("a piece");
            let ends = last[14 + 20 + 13] & (FIN | PSH) != 0;
            assert_eq!(ends, split.lost_bytes() == 0, "the end is not sent without the rest");
        }
    }

    #[test]
    fn a_network_card_cuts_all_of_it() {
        let payload = 60_000;
        let (header, frame) =
            SegmentBuilder { payload, ..SegmentBuilder::default() }.partial(Some(100));
        let offload = OffloadState::from_header(&header).expect("understood");
        let headers = Headers::parse(&frame).expect("IP");
        let split = Split::of_size(offload, &headers, &frame, 100).expect("can be cut");
        assert_eq!((split.pieces(), split.lost_pieces()), (600, 0));
    }

    #[test]
    fn pieces_are_of_nearly_equal_size() {
        for payload in (1..5000).step_by(37) {
            let (_, frame) = SegmentBuilder { payload, ..SegmentBuilder::default() }.partial(None);
            let pieces = pieces(Split::OFFLOAD, &frame, 66 + 400).expect("can be cut");
            assert_eq!(pieces.len(), payload.div_ceil(400));
            let last = pieces.last().map_or(0, Vec::len);
            assert!(pieces[0].len() - last < pieces.len(), "{payload} bytes");
        }
    }

    #[test]
    fn a_wrong_checksum_is_not_hidden() {
        let frame = SegmentBuilder { payload: 3000, ..SegmentBuilder::default() }.build();
        assert_eq!(
            pieces(OffloadState::default(), &frame, 1400).map(|pieces| pieces.len()),
            Some(3)
        );
        for bit in 14 * 8..frame.len() * 8 {
            let mut wrong = frame.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            if let Some(headers) = Headers::parse(&wrong) {
                assert!(
                    Split::new(OffloadState::default(), &headers, &wrong, 1400).is_none(),
                    "bit {bit}"
                );
            }
        }
    }

    #[test]
    fn connection_control_is_not_cut() {
        for flags in [SYN, RST | ACK, URG | ACK] {
            let (_, frame) =
                SegmentBuilder { payload: 3000, flags, ..SegmentBuilder::default() }.partial(None);
            assert_eq!(pieces(Split::OFFLOAD, &frame, 1400), None);
        }
    }

    #[test]
    fn padding_is_dropped() {
        let (_, mut frame) =
            SegmentBuilder { payload: 1, ..SegmentBuilder::default() }.partial(None);
        let end = frame.len();
        frame.resize(end + 9, 0xee);
        assert_eq!(pieces(Split::OFFLOAD, &frame, 1400), Some(vec![frame[..end].to_vec()]));
    }

    #[test]
    fn room_for_the_headers_alone_is_no_room() {
        let (_, frame) = SegmentBuilder { payload: 100, ..SegmentBuilder::default() }.partial(None);
        assert_eq!(pieces(Split::OFFLOAD, &frame, 66), None);
        assert_eq!(pieces(Split::OFFLOAD, &frame, 67).map(|pieces| pieces.len()), Some(100));
    }

    #[test]
    fn a_short_buffer_is_left_alone() {
        let (_, frame) =
            SegmentBuilder { payload: 3000, ..SegmentBuilder::default() }.partial(None);
        let headers = Headers::parse(&frame).expect("IP");
        let mut split = Split::new(Split::OFFLOAD, &headers, &frame, 1400).expect("can be cut");
        assert_eq!(split.next(&mut [0; 100]), None);
        assert!(split.next(&mut [0; 1400]).is_some());
    }
}
