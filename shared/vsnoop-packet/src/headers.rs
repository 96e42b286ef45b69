//! Where the layers of a frame begin and end: one pass over its first bytes.
//!
//! Offsets instead of slices, so that a frame may be changed while they are kept. Every offset lies
//! within the frame that they were read from, and `payload <= end`.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

use zerocopy::FromBytes;

use crate::format::{
    IPV4, IPV4_BYTES, IPV6, IPV6_BYTES, Ipv4Header, MACS_BYTES, TAG_BYTES, TCP, TCP_BYTES,
    TcpHeader, UDP, UDP_BYTES, is_tag,
};
use crate::options::Options;

/// Tags that are looked behind; two are used in practice (QinQ).
const TAGS_LIMIT: u8 = 4;
/// IPv6 extension headers that are looked behind.
const EXTENSIONS_LIMIT: usize = 8;

/// Offsets from the start of an Ethernet frame that carries IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The IP header.
    pub ip: u16,
    /// Offset of the payload of IP header and extension headers.
    pub l4: u16,
    /// Offset of the TCP or UDP payload; equal to `l4` if there is no such header, or not all of
    /// it.
    pub payload: u16,
    /// The end of the IP packet; Ethernet padding may follow.
    pub end: u32,
    pub v6: bool,
    /// The protocol at `l4`.
    pub protocol: u8,
    /// One fragment of a larger IP packet.
    pub fragment: bool,
    /// VLAN tags before the IP header.
    pub tags: u8,
}

impl Headers {
    /// The headers of a frame that carries a whole and consistent IP packet.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let headers = Self::of_start(frame)?;
        (headers.end as usize <= frame.len()).then_some(headers)
    }

    /// The headers of a frame of which only the first bytes lie here: `end` may be beyond them.
    #[inline]
    pub fn of_start(frame: &[u8]) -> Option<Self> {
        let mut tags = 0;
        let mut at = MACS_BYTES;
        let v6 = loop {
            match be16(frame, at)? {
                IPV4 => break false,
                IPV6 => break true,
                kind if is_tag(kind) && tags < TAGS_LIMIT => tags += 1,
                _ => return None,
            }
            at += TAG_BYTES;
        };
        let ip = at + 2;
        let mut headers = Self {
            ip: ip as u16,
            l4: 0,
            payload: 0,
            end: 0,
            v6,
            protocol: 0,
            fragment: false,
            tags,
        };
        let l4 = if v6 { headers.read_v6(frame, ip)? } else { headers.read_v4(frame, ip)? };
        let end = headers.end as usize;
        headers.l4 = u16::try_from(l4).ok()?;
        let header_bytes = match headers.protocol {
            _ if headers.fragment => 0,
            TCP => match frame.get(l4 + 12) {
                Some(offset) if offset >> 4 >= 5 => usize::from(offset >> 4) * 4,
                _ => 0,
            },
            UDP => UDP_BYTES,
            _ => 0,
        };
        let payload = if l4 + header_bytes <= end { l4 + header_bytes } else { l4 };
        headers.payload = u16::try_from(payload).ok()?;
        Some(headers)
    }

    #[inline]
    fn read_v4(&mut self, frame: &[u8], ip: usize) -> Option<usize> {
        let header = frame.get(ip..ip + IPV4_BYTES)?;
        let header_bytes = usize::from(header[0] & 15) * 4;
        let bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header[0] >> 4 != 4 || header_bytes < IPV4_BYTES || bytes < header_bytes {
            return None;
        }
        self.end = (ip + bytes) as u32;
        self.protocol = header[9];
        self.fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        Some(ip + header_bytes)
    }

    #[inline]
    fn read_v6(&mut self, frame: &[u8], ip: usize) -> Option<usize> {
        let header = frame.get(ip..ip + IPV6_BYTES)?;
        let end = ip + IPV6_BYTES + usize::from(u16::from_be_bytes([header[4], header[5]]));
        if header[0] >> 4 != 6 {
            return None;
        }
        self.end = end as u32;
        self.protocol = header[6];
        let mut at = ip + IPV6_BYTES;
        for _ in 0..EXTENSIONS_LIMIT {
            let bytes = match self.protocol {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => (usize::from(*frame.get(at + 1)?) + 1) * 8,
                44 => {
                    self.fragment |= be16(frame, at + 2)? & 0xfff9 != 0;
                    8
                }
                _ => return Some(at),
            };
            if at + bytes > end {
                return None;
            }
            self.protocol = *frame.get(at)?;
            at += bytes;
        }
        None
    }

    /// A whole TCP segment.
    #[inline]
    pub fn tcp(&self) -> bool {
        self.protocol == TCP && self.payload > self.l4
    }

    /// A whole UDP datagram.
    #[inline]
    pub fn udp(&self) -> bool {
        self.protocol == UDP && self.payload > self.l4
    }

    /// The IP header has neither options nor extension headers.
    #[inline]
    pub fn plain(&self) -> bool {
        usize::from(self.l4 - self.ip) == if self.v6 { IPV6_BYTES } else { IPV4_BYTES }
    }

    /// Bytes that the transport carries.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.end as usize - usize::from(self.payload)
    }

    /// Payload of the transport; empty if `frame` is not the one that was parsed.
    pub fn payload_of<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        frame.get(usize::from(self.payload)..self.end as usize).unwrap_or_default()
    }

    /// The IPv4 header without its options; `None` of an IPv6 packet.
    pub fn ipv4_header<'f>(&self, frame: &'f [u8]) -> Option<&'f Ipv4Header> {
        let bytes = frame.get(usize::from(self.ip)..).filter(|_| !self.v6)?;
        Ipv4Header::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The TCP header without its options; `None` if there is no whole TCP segment.
    pub fn tcp_header<'f>(&self, frame: &'f [u8]) -> Option<&'f TcpHeader> {
        let bytes = frame.get(usize::from(self.l4)..).filter(|_| self.tcp())?;
        TcpHeader::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The options of a TCP segment.
    pub fn tcp_options<'f>(&self, frame: &'f [u8]) -> Options<'f> {
        let options = usize::from(self.l4) + TCP_BYTES..usize::from(self.payload);
        Options::new(frame.get(options).filter(|_| self.tcp()).unwrap_or_default())
    }

    /// Source and destination port of a whole TCP segment or UDP datagram.
    pub fn ports(&self, frame: &[u8]) -> Option<[u16; 2]> {
        let l4 = usize::from(self.l4);
        if !self.tcp() && !self.udp() {
            return None;
        }
        Some([be16(frame, l4)?, be16(frame, l4 + 2)?])
    }

    /// Source and destination address; empty if `frame` is not the one that was read.
    #[inline]
    pub fn addresses<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        let ip = usize::from(self.ip);
        let range = if self.v6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
        frame.get(range).unwrap_or_default()
    }

    /// The addresses as they are written; `None` if `frame` is not the one that was read.
    pub fn ips(&self, frame: &[u8]) -> Option<[IpAddr; 2]> {
        let both = self.addresses(frame);
        let (source, destination) = both.split_at_checked(both.len() / 2)?;
        let ip = |bytes: &[u8]| {
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
        };
        Some([ip(source)?, ip(destination)?])
    }

    /// The number of the outermost VLAN; 0 without a tag.
    #[inline]
    pub fn vlan(&self, frame: &[u8]) -> u16 {
        if self.tags == 0 { 0 } else { be16(frame, MACS_BYTES + 2).unwrap_or(0) & 0xfff }
    }

    /// Hashes addresses, protocol, ports and VLANs: all frames of a flow have the same hash.
    ///
    /// Fragments count by their addresses only, since but the first have no ports. Each process has
    /// a random seed: a sender that chooses addresses cannot cause hash collisions.
    #[inline]
    pub fn flow_hash(&self, frame: &[u8]) -> FlowHash {
        let [k0, k1] = *SEEDS;
        let mut hash = mix(u64::from(self.protocol) ^ k0, u64::from(self.tags) ^ k1);
        for tag in 0..usize::from(self.tags) {
            hash = mix(
                hash ^ u64::from(be16(frame, MACS_BYTES + 2 + 4 * tag).unwrap_or(0) & 0xfff),
                k1,
            );
        }
        let (words, _) = self.addresses(frame).as_chunks::<8>();
        for word in words {
            hash = mix(hash ^ u64::from_le_bytes(*word), k0);
        }
        if self.payload > self.l4
            && let Some(ports) =
                frame.get(usize::from(self.l4)..).and_then(|rest| rest.first_chunk::<4>())
        {
            hash = mix(hash ^ u64::from(u32::from_le_bytes(*ports)), k1);
        }
        FlowHash(hash)
    }
}

/// Stands for a flow. Two flows may have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowHash(pub u64);

impl FlowHash {
    /// Spreads all bits over the high ones (Fibonacci hashing), for an index into a table: flows
    /// that share one index by their low bits have different ones here.
    #[inline]
    #[must_use]
    pub fn spread(self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Hashes the Ethernet header of a frame that carries no IP; for others see
/// [`Headers::flow_hash`].
pub fn ethernet_hash(frame: &[u8]) -> FlowHash {
    let mut bytes = [0; 16];
    let header = &frame[..frame.len().min(MACS_BYTES + 2)];
    bytes[..header.len()].copy_from_slice(header);
    let word = u128::from_le_bytes(bytes);
    let [k0, k1] = *SEEDS;
    FlowHash(mix(word as u64 ^ k0, (word >> 64) as u64 ^ k1))
}

/// Random; odd, so that a product loses nothing.
static SEEDS: LazyLock<[u64; 2]> =
    LazyLock::new(|| [0, 1].map(|number| RandomState::new().hash_one(number) | 1));

/// Both halves of the product of two words: each bit of either reaches most bits of the result.
#[inline]
fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
pub(crate) fn be16(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

#[inline]
pub(crate) fn be32(frame: &[u8], at: usize) -> Option<u32> {
    frame.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ACK, PSH};
    use crate::testing::SegmentBuilder;
    use proptest::prelude::*;

    #[test]
    fn flows_with_the_same_low_bits_spread() {
        for shift in [0, 8, 32] {
            let indices = (0..1024).map(|n| FlowHash(n << shift).spread() >> 54);
            let distinct = indices.collect::<std::collections::HashSet<_>>().len();
            assert!(distinct > 600, "{distinct} of 1024 shifted by {shift}");
        }
    }

    #[test]
    fn layers_are_found_behind_any_number_of_tags() {
        for (v6, ip_header) in [(false, 20), (true, 40)] {
            for tags in 0..3 {
                let frame =
                    SegmentBuilder { v6, tags, payload: 100, ..SegmentBuilder::default() }.build();
                let headers = Headers::parse(&frame).expect("IP");
                let ip = 14 + 4 * tags as u16;
                assert_eq!((headers.ip, headers.l4), (ip, ip + ip_header));
                assert_eq!(headers.payload, ip + ip_header + 32);
                assert_eq!(headers.tags, tags as u8);
                assert_eq!(headers.end as usize, frame.len());
                assert!(headers.tcp() && headers.plain() && !headers.fragment);
                assert_eq!(headers.vlan(&frame), if tags == 0 { 0 } else { 100 });
            }
        }
    }

    #[test]
    fn a_cut_frame_has_no_headers() {
        for v6 in [false, true] {
            let frame = SegmentBuilder { v6, payload: 50, ..SegmentBuilder::default() }.build();
            for end in 0..frame.len() {
                assert_eq!(Headers::parse(&frame[..end]), None, "cut at {end}");
            }
        }
    }

    #[test]
    fn padding_is_not_part_of_the_packet() {
        let mut frame = SegmentBuilder { payload: 1, ..SegmentBuilder::default() }.build();
        let end = frame.len();
        frame.resize(end + 9, 0xee);
        assert_eq!(Headers::parse(&frame).expect("IP").end as usize, end);
    }

    #[test]
    fn a_fragment_is_no_segment() {
        let mut frame = SegmentBuilder { payload: 100, ..SegmentBuilder::default() }.build();
        frame[14 + 6] |= 0x20;
        let headers = Headers::parse(&frame).expect("IP");
        assert!(headers.fragment && !headers.tcp());
    }

    #[test]
    fn flows_differ_in_what_makes_a_flow_and_in_nothing_else() {
        let hash = |frame: &[u8]| Headers::parse(frame).expect("IP").flow_hash(frame);
        let frame = SegmentBuilder { tags: 1, payload: 10, ..SegmentBuilder::default() }.build();
        let base = hash(&frame);
        let later = SegmentBuilder {
            tags: 1,
            payload: 900,
            sequence: 5,
            flags: PSH | ACK,
            ..SegmentBuilder::default()
        };
        assert_eq!(hash(&later.build()), base);
        // VLAN, source and destination address, source and destination port.
        for at in [15, 18 + 15, 18 + 19, 18 + 21, 18 + 23] {
            let mut other = frame.clone();
            other[at] ^= 1;
            assert_ne!(hash(&other), base, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn offsets_lie_within_whatever_was_read(
            mut frame in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0..4usize,
        ) {
            if frame.len() > 15 {
                let start = [[8, 0, 0x45], [0x86, 0xdd, 0x60], [0x81, 0, 0], [0x88, 0xa8, 0]];
                frame[12..15].copy_from_slice(&start[kind]);
                // Lengths that are often small enough.
                for at in [16, 18, 20, 22] {
                    if let Some(byte) = frame.get_mut(at) { *byte = 0; }
                }
            }
            if let Some(headers) = Headers::parse(&frame) {
                prop_assert!(headers.ip <= headers.l4 && headers.l4 <= headers.payload);
                prop_assert!(u32::from(headers.payload) <= headers.end);
                prop_assert!(headers.end as usize <= frame.len());
                headers.flow_hash(&frame);
            }
        }
    }
}
