//! Formats of headers, and the numbers that stand in them.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Ether types.
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
/// 802.1Q.
pub const VLAN: u16 = 0x8100;
/// 802.1ad, the outer tag of QinQ.
pub const SERVICE_VLAN: u16 = 0x88a8;
/// QinQ before 802.1ad.
const OLD_SERVICE_VLAN: u16 = 0x9100;

/// Protocol numbers of IP.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// Bits of a TCP header's byte 13.
pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

/// ECN field of the IP header: congestion experienced (RFC 3168).
pub const CE: u8 = 3;

/// Bytes of the two addresses of an Ethernet header; tags or the type follow.
pub const MACS_BYTES: usize = 12;
pub const TAG_BYTES: usize = 4;
/// Without tags.
pub const ETHERNET_BYTES: usize = MACS_BYTES + 2;
/// Without options.
pub const IPV4_BYTES: usize = size_of::<Ipv4Header>();
/// Without extension headers.
pub const IPV6_BYTES: usize = size_of::<Ipv6Header>();
/// Without options.
pub const TCP_BYTES: usize = size_of::<TcpHeader>();
pub const UDP_BYTES: usize = size_of::<UdpHeader>();

/// Offset of the checksum in a TCP and in a UDP header.
pub const TCP_CHECKSUM: u16 = 16;
pub const UDP_CHECKSUM: u16 = 6;

/// Whether a VLAN tag begins with this ether type.
#[inline]
pub const fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, VLAN | SERVICE_VLAN | OLD_SERVICE_VLAN)
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub ether_type: u16,
    /// The 12 bits of the VLAN's number; priority and drop eligibility stand above.
    pub id: u16,
}

impl Tag {
    /// An 802.1Q tag.
    pub const fn customer(id: u16) -> Self {
        Self { ether_type: VLAN, id }
    }

    /// An 802.1ad tag, the outer one of QinQ.
    pub const fn service(id: u16) -> Self {
        Self { ether_type: SERVICE_VLAN, id }
    }

    pub const fn to_bytes(self) -> [u8; TAG_BYTES] {
        let [[a, b], [c, d]] = [self.ether_type.to_be_bytes(), self.id.to_be_bytes()];
        [a, b, c, d]
    }
}

/// RFC 791, without options.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version, and length of the header in words of 4 bytes.
    pub version_ihl: u8,
    pub tos: u8,
    /// Bytes of the packet, header included.
    pub total_length: U16,
    pub identification: U16,
    /// Flags, and offset of a fragment in units of 8 bytes.
    pub fragment: U16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: U16,
    pub source: [u8; 4],
    pub destination: [u8; 4],
}

impl Ipv4Header {
    /// Bit of [`Self::fragment`].
    pub const DONT_FRAGMENT: u16 = 0x4000;
    pub const MORE_FRAGMENTS: u16 = 0x2000;
}

/// RFC 8200.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version, traffic class, flow label.
    pub version_class_flow: U32,
    /// Bytes behind this header.
    pub payload_length: U16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: [u8; 16],
    pub destination: [u8; 16],
}

/// RFC 9293, without options.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TcpHeader {
    pub source_port: U16,
    pub destination_port: U16,
    pub sequence: U32,
    pub acknowledgment: U32,
    /// Length of the header in words of 4 bytes, in the upper 4 bits.
    pub data_offset: u8,
    pub flags: u8,
    pub window: U16,
    pub checksum: U16,
    pub urgent: U16,
}

/// RFC 768.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    pub source_port: U16,
    pub destination_port: U16,
    /// Bytes of the datagram, header included.
    pub length: U16,
    pub checksum: U16,
}
