//! The offload state of a frame: whether its checksum is partial, and whether it is a super-packet.
//!
//! A `virtio_net_hdr` has offsets into the frame. They follow from the frame's own headers, so a
//! link carries only whether the checksum is left to do and how large the segments are. A frame
//! from another host can thus not make a tap read outside its headers. Super-packets of UDP are cut
//! before a link carries them ([`super::udp`]).

use crate::checksum;
use crate::headers::Headers;
use crate::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VirtioNetHdr};

/// Pieces of one frame at most; the rest of the frame is lost, as in a full queue, and its sender's
/// TCP repeats it. A VM chooses `gso_size`: with 1, 64 KB would become 65,000 datagrams, and a link
/// would do nothing else. 256 segments of 256 bytes are 64 KB: senders with such a small MSS lose
/// nothing.
pub const PIECES_LIMIT: usize = 256;

/// Offloads that are left to do before a frame can go on a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OffloadState {
    /// The transport checksum holds the sum of the pseudo-header only.
    pub needs_checksum: bool,
    /// The frame is a super-packet.
    pub gso: Option<Gso>,
}

/// How a super-packet is to be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    pub kind: GsoKind,
    /// Payload bytes of each segment; never 0 in one that [`OffloadState::from_header`] returned.
    pub size: u16,
    /// The super-packet carries CWR, which belongs to its first segment alone.
    pub ecn: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GsoKind {
    TcpV4,
    TcpV6,
}

impl OffloadState {
    /// Reads a `virtio_net_hdr`; `None` if it asks for something that a link does not know.
    ///
    /// Ignores the header's offsets of the checksum: see [`Self::stands_at`].
    pub fn from_header(header: &VirtioNetHdr) -> Option<Self> {
        let needs_checksum = header.needs_checksum();
        let kind = match header.gso_type & !GSO_ECN {
            // ECN alone says nothing.
            GSO_NONE => return Some(Self { needs_checksum, gso: None }),
            GSO_TCPV4 => GsoKind::TcpV4,
            GSO_TCPV6 => GsoKind::TcpV6,
            _ => return None,
        };
        // A device must leave the checksum to do in a super-packet (virtio 1.2, 5.1.6.2).
        let size = header.gso_size.get();
        (needs_checksum && size > 0).then_some(Self {
            needs_checksum,
            gso: Some(Gso { kind, size, ecn: header.gso_type & GSO_ECN != 0 }),
        })
    }

    /// Whether the checksum that `header` leaves to do is the one of these headers.
    ///
    /// It is not when a guest leaves the one of an inner packet to do (a tunnel in the guest).
    pub fn stands_at(header: &VirtioNetHdr, headers: &Headers) -> bool {
        !header.needs_checksum()
            || checksum::offset(headers).is_some_and(|offset| {
                header.csum_start.get() == headers.l4 && header.csum_offset.get() == offset
            })
    }

    /// The `virtio_net_hdr` to write before the frame, of `frame_bytes` in all, into a tap.
    ///
    /// Leaves out offloads that do not fit the headers, which only a forged frame has. Makes
    /// segments so large that there are at most [`PIECES_LIMIT`]: a host cuts the frame for a VM
    /// that takes no super-packets, and 64 KB in segments of one byte would be 65,000 packets.
    pub fn header(&self, headers: Option<&Headers>, frame_bytes: usize) -> VirtioNetHdr {
        let mut header = VirtioNetHdr::default();
        let Some((headers, offset)) =
            headers.and_then(|headers| Some((headers, checksum::offset(headers)?)))
        else {
            return header;
        };
        if !self.needs_checksum {
            return header;
        }
        header.flags = NEEDS_CSUM;
        header.csum_start.set(headers.l4);
        header.csum_offset.set(offset);
        if let Some(gso) = self.gso
            && gso.fits(headers)
        {
            header.gso_type = match gso.kind {
                GsoKind::TcpV4 => GSO_TCPV4,
                GsoKind::TcpV6 => GSO_TCPV6,
            } | if gso.ecn { GSO_ECN } else { 0 };
            // The kernel cuts all of the frame, also what lies behind the end of the IP packet.
            let cut_bytes = frame_bytes.saturating_sub(headers.payload.into());
            let least = cut_bytes.div_ceil(PIECES_LIMIT);
            header.gso_size.set(gso.size.max(least.min(u16::MAX.into()) as u16));
            header.hdr_len.set(headers.payload);
        }
        header
    }
}

impl Gso {
    /// Whether a frame with these headers can be such a super-packet.
    pub fn fits(&self, headers: &Headers) -> bool {
        self.size > 0 && headers.tcp() && headers.v6 == (self.kind == GsoKind::TcpV6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SegmentBuilder;

    #[test]
    fn a_header_comes_back_as_it_was() {
        for v6 in [false, true] {
            for tags in 0..3 {
                for gso in [None, Some(1448)] {
                    let spec =
                        SegmentBuilder { v6, tags, payload: 5000, ..SegmentBuilder::default() };
                    let (header, frame) = spec.partial(gso);
                    let offload = OffloadState::from_header(&header).expect("understood");
                    let headers = Headers::parse(&frame).expect("IP");
                    assert!(OffloadState::stands_at(&header, &headers));
                    assert_eq!(offload.header(Some(&headers), frame.len()), header);
                }
            }
        }
    }

    #[test]
    fn a_host_is_not_made_to_cut_a_frame_into_more_pieces_than_a_link_would() {
        let spec = SegmentBuilder { payload: 60_000, ..SegmentBuilder::default() };
        for (size, expected) in [(1, 235), (8, 235), (235, 235), (1448, 1448)] {
            let (header, frame) = spec.partial(Some(size));
            let offload = OffloadState::from_header(&header).expect("understood");
            let headers = Headers::parse(&frame).expect("IP");
            let made = offload.header(Some(&headers), frame.len());
            assert_eq!(made.gso_size.get(), expected, "of {size}");
        }
        // A short IP packet, and 60,000 bytes behind it.
        let (header, mut frame) = SegmentBuilder::default().partial(Some(1));
        let offload = OffloadState::from_header(&header).expect("understood");
        frame.resize(frame.len() + 60_000, 0);
        let headers = Headers::parse(&frame).expect("IP");
        assert!(offload.header(Some(&headers), frame.len()).gso_size.get() >= 235);
    }

    #[test]
    fn a_checksum_of_an_inner_packet_is_not_taken_for_the_outer_one() {
        let (mut header, frame) = SegmentBuilder::default().partial(None);
        header.csum_start.set(header.csum_start.get() + 50);
        assert!(!OffloadState::stands_at(&header, &Headers::parse(&frame).expect("IP")));
    }

    #[test]
    fn unknown_kinds_and_empty_sizes_are_not_understood() {
        let (header, _) =
            SegmentBuilder { payload: 5000, ..SegmentBuilder::default() }.partial(Some(1000));
        assert!(OffloadState::from_header(&header).is_some());
        assert_eq!(OffloadState::from_header(&VirtioNetHdr { gso_type: 3, ..header }), None);
        assert_eq!(OffloadState::from_header(&VirtioNetHdr { gso_size: 0.into(), ..header }), None);
        assert_eq!(OffloadState::from_header(&VirtioNetHdr { flags: 0, ..header }), None);
    }

    #[test]
    fn a_peer_that_lies_about_a_super_packet_is_not_believed() {
        let frame = SegmentBuilder::default().build();
        let headers = Headers::parse(&frame).expect("IP");
        let gso = Some(Gso { kind: GsoKind::TcpV6, size: 1000, ecn: false });
        let header = OffloadState { needs_checksum: true, gso }.header(Some(&headers), frame.len());
        assert!(!header.is_super_packet());
        assert_eq!(
            OffloadState { needs_checksum: true, gso }.header(None, frame.len()),
            VirtioNetHdr::default()
        );
    }
}
