//! Completing and verifying checksums.
//!
//! A frame with `NEEDS_CSUM` (the kernel's `CHECKSUM_PARTIAL`) holds the sum of the pseudo-header
//! in its checksum field; the sum from `csum_start` to the end of the IP packet completes it.

use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use crate::layout::Layout;
use crate::packet::Packet;

/// Where a UDP checksum stands in its header; there 0 would mean "none" (RFC 768).
const UDP_CHECKSUM_OFFSET: usize = 6;

/// Fills in the checksum that a packet owes, if any; `false` if its header points outside it.
///
/// Not for super-packets: their segments get their own checksums.
pub fn complete(packet: &mut Packet) -> bool {
    if !packet.header.needs_checksum() {
        return true;
    }
    let start = usize::from(packet.header.csum_start.get());
    let offset = usize::from(packet.header.csum_offset.get());
    let frame = packet.frame_mut();
    let end = Layout::of(frame).map_or(frame.len(), |layout| layout.ip_end);
    let field = start + offset;
    if start >= end || field + 2 > end {
        return false;
    }
    let sum = Sum16BitWords::new().add_slice(&frame[start..end]);
    let value = if offset == UDP_CHECKSUM_OFFSET {
        sum.to_ones_complement_with_no_zero()
    } else {
        sum.ones_complement()
    };
    // The sum is of bytes as they lie in memory; it goes back the same way.
    frame[field..field + 2].copy_from_slice(&value.to_ne_bytes());
    packet.header.settle();
    true
}

/// Whether the checksums of a whole TCP segment are right; `None` if the frame is none.
///
/// For IPv4 that includes the header checksum: a receiver drops the segment for either.
pub fn tcp_is_right(frame: &[u8]) -> Option<bool> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { return None };
    Some(match sliced.net? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            Sum16BitWords::new().add_slice(header.slice()).ones_complement() == 0
                && tcp.calc_checksum_ipv4(header.source(), header.destination()).ok()
                    == Some(tcp.checksum())
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            tcp.calc_checksum_ipv6(header.source(), header.destination()).ok()
                == Some(tcp.checksum())
        }
        NetSlice::Arp(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Pool;
    use crate::testing::{TcpFrame, V4, V6};

    #[test]
    fn a_partial_checksum_is_completed() {
        for addresses in [V4, V6] {
            for payload in [0, 1, 2, 1447, 1448] {
                for tags in 0..3 {
                    let spec = TcpFrame { addresses, payload, tags, ..TcpFrame::default() };
                    let mut packet = Pool::default().take();
                    spec.build_partial(&mut packet);
                    assert_eq!(tcp_is_right(packet.frame()), Some(false));
                    assert!(complete(&mut packet));
                    assert_eq!(packet.frame(), spec.build(), "{payload} bytes, {tags} tags");
                    assert!(!packet.header.needs_checksum());
                }
            }
        }
    }

    #[test]
    fn padding_does_not_count() {
        let spec = TcpFrame { payload: 3, ..TcpFrame::default() };
        let mut packet = Pool::default().take();
        spec.build_partial(&mut packet);
        let length = packet.frame().len();
        packet.set_length(length + 5);
        packet.frame_mut()[length..].fill(0xff);
        assert!(complete(&mut packet));
        assert_eq!(&packet.frame()[..length], spec.build());
    }

    #[test]
    fn a_header_that_points_outside_the_frame_is_refused() {
        let mut packet = Pool::default().take();
        TcpFrame::default().build_partial(&mut packet);
        packet.header.csum_start.set(60_000);
        assert!(!complete(&mut packet));
    }

    #[test]
    fn any_flipped_bit_of_the_ip_packet_is_noticed() {
        let frame = TcpFrame { addresses: V4, payload: 9, ..TcpFrame::default() }.build();
        assert_eq!(tcp_is_right(&frame), Some(true));
        for bit in 14 * 8..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(tcp_is_right(&flipped), Some(true), "bit {bit}");
        }
    }
}
