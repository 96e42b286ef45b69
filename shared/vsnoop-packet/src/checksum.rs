//! The Internet checksum, eight bytes at a time (RFC 1071).
//!
//! Sums are `u16` numbers in network byte order, added with end-around carry. Since the carry makes
//! the order of bytes irrelevant until the end (RFC 1071, 2B), words are added as they lie in
//! memory. The four chains have no data in common, so that a core can work on all of them at once.

use crate::format::{TCP_CHECKSUM, UDP_CHECKSUM};
use crate::headers::Headers;

/// The sum of `bytes`; an odd last byte counts as if a zero followed it.
pub fn sum(bytes: &[u8]) -> u16 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut chains = [0u64; 4];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (chain, word) in chains.iter_mut().zip(words) {
            *chain = carry(*chain, u64::from_ne_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    let mut total = chains.into_iter().fold(0, carry);
    for word in words {
        total = carry(total, u64::from_ne_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    total = carry(total, u64::from_ne_bytes(last));

    // Half of the bits at a time, and once more for the carry of each.
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    u16::from_be(total as u16)
}

#[inline]
fn carry(total: u64, word: u64) -> u64 {
    let (total, over) = total.overflowing_add(word);
    total + u64::from(over)
}

/// The sum of two sums.
#[inline]
pub fn add(one: u16, other: u16) -> u16 {
    let (total, over) = one.overflowing_add(other);
    total + u16::from(over)
}

/// The sum that `other` was added to, to get `one`.
#[inline]
pub fn subtract(one: u16, other: u16) -> u16 {
    add(one, !other)
}

/// Whether two sums are the same number: all ones is another way to write zero.
#[inline]
pub fn same(one: u16, other: u16) -> bool {
    one == other || (matches!(one, 0 | 0xffff) && matches!(other, 0 | 0xffff))
}

/// The sum of the pseudo-header without its length.
pub fn pseudo_header(headers: &Headers, frame: &[u8]) -> u16 {
    add(sum(headers.addresses(frame)), u16::from(headers.protocol))
}

/// Whether the checksum of a transport header that is 0 over the pseudo-header holds.
pub fn transport_is_right(headers: &Headers, frame: &[u8]) -> bool {
    let Some(bytes) = frame.get(usize::from(headers.l4)..headers.end as usize) else {
        return false;
    };
    let pseudo = add(pseudo_header(headers, frame), bytes.len() as u16);
    add(pseudo, sum(bytes)) == 0xffff
}

/// Whether the IPv4 header's own checksum holds; IPv6 has none.
pub fn ip_is_right(headers: &Headers, frame: &[u8]) -> bool {
    headers.v6
        || frame
            .get(usize::from(headers.ip)..usize::from(headers.l4))
            .is_some_and(|header| sum(header) == 0xffff)
}

/// Whether both checksums of a TCP segment hold, its own and that of IPv4; `None` if the frame has
/// no whole TCP segment.
pub fn tcp_is_right(frame: &[u8]) -> Option<bool> {
    let headers = Headers::parse(frame).filter(Headers::tcp)?;
    Some(ip_is_right(&headers, frame) && transport_is_right(&headers, frame))
}

/// Puts the checksum of an IPv4 header right; `header` has its options and nothing else.
pub fn complete_ipv4(header: &mut [u8]) {
    header[10..12].fill(0);
    let checksum = !sum(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Offset of the checksum in the transport header, if it can be partial.
pub fn offset(headers: &Headers) -> Option<u16> {
    if headers.tcp() {
        Some(TCP_CHECKSUM)
    } else if headers.udp() {
        Some(UDP_CHECKSUM)
    } else {
        None
    }
}

/// Makes the checksum of a whole TCP segment or UDP datagram partial: the sum of the pseudo-header;
/// `false` if the frame has none.
pub fn make_partial(headers: &Headers, frame: &mut [u8]) -> bool {
    let bytes = headers.end - u32::from(headers.l4);
    let pseudo = add(pseudo_header(headers, frame), bytes as u16);
    let at = offset(headers).map(|at| usize::from(headers.l4 + at));
    let Some(field) = at.and_then(|at| frame.get_mut(at..at + 2)) else { return false };
    field.copy_from_slice(&pseudo.to_be_bytes());
    true
}

/// Completes the partial checksum of a whole TCP segment or UDP datagram, which holds the sum of
/// the pseudo-header; `false` if the frame has none.
pub fn complete(frame: &mut [u8]) -> bool {
    let Some(headers) = Headers::parse(frame) else { return false };
    let at = offset(&headers);
    at.is_some_and(|at| complete_at(frame, headers.l4.into(), headers.end as usize, at))
}

/// Completes a partial checksum at `start + offset`, which is of the bytes from `start` to `end`;
/// `false` if the field is not among them.
pub fn complete_at(frame: &mut [u8], start: usize, end: usize, offset: u16) -> bool {
    let Some(summed) = frame.get_mut(start..end) else { return false };
    let mut value = !sum(summed);
    // In UDP a 0 would mean that there is no checksum (RFC 768).
    if value == 0 && offset == UDP_CHECKSUM {
        value = 0xffff;
    }
    let at = usize::from(offset);
    let Some(field) = summed.get_mut(at..at + 2) else { return false };
    field.copy_from_slice(&value.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SegmentBuilder;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    fn slow(bytes: &[u8]) -> u16 {
        let mut total = 0u64;
        for pair in bytes.chunks(2) {
            total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        while total > 0xffff {
            total = (total >> 16) + (total & 0xffff);
        }
        total as u16
    }

    proptest! {
        #[test]
        fn the_fast_sum_is_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(sum(&bytes), slow(&bytes));
        }

        #[test]
        fn what_was_added_can_be_subtracted(one: u16, other: u16) {
            prop_assert!(same(subtract(add(one, other), other), one));
        }
    }

    #[test]
    fn every_carry_is_kept() {
        for length in 0..100 {
            assert_eq!(sum(&vec![0xff; length]), slow(&vec![0xff; length]), "{length} bytes");
        }
    }
    #[test]
    fn another_implementation_finds_the_same_checksums() {
        for v6 in [false, true] {
            for payload in [0, 1, 2, 1447, 1448] {
                for tags in 0..3 {
                    let frame =
                        SegmentBuilder { v6, payload, tags, ..SegmentBuilder::default() }.build();
                    assert_eq!(tcp_is_right(&frame), Some(true));
                    let sliced = SlicedPacket::from_ethernet(&frame).expect("well-formed");
                    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
                    let right = match sliced.net.expect("IP") {
                        NetSlice::Ipv4(ip) => {
                            let header = ip.header().to_header();
                            assert_eq!(header.header_checksum, header.calc_header_checksum());
                            tcp.calc_checksum_ipv4(header.source, header.destination)
                        }
                        NetSlice::Ipv6(ip) => {
                            let header = ip.header().to_header();
                            tcp.calc_checksum_ipv6(header.source, header.destination)
                        }
                        NetSlice::Arp(_) => panic!("ARP"),
                    };
                    assert_eq!(right, Ok(tcp.checksum()));
                }
            }
        }
    }

    #[test]
    fn any_flipped_bit_of_the_ip_packet_is_noticed() {
        let frame = SegmentBuilder { payload: 9, ..SegmentBuilder::default() }.build();
        for bit in 14 * 8..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(tcp_is_right(&flipped), Some(true), "bit {bit}");
        }
    }
}
