//! Writes Ethernet frames that carry TCP or UDP over IPv4 or IPv6.
//!
//! Packets have the don't-fragment bit and no IP options.

use zerocopy::IntoBytes;

use crate::checksum::{self, add, sum};
use crate::format::{
    ACK, IPV4, IPV4_BYTES, IPV6, Ipv4Header, Ipv6Header, TCP, TCP_BYTES, Tag, TcpHeader, UDP,
    UDP_BYTES, UdpHeader,
};

/// The most usual.
const HOP_LIMIT: u8 = 64;

/// The Ethernet header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ethernet {
    pub source: [u8; 6],
    pub destination: [u8; 6],
    /// VLAN tags, the outer one first.
    pub tags: [Option<Tag>; 2],
}

impl Ethernet {
    /// Appends the header of a frame that carries a packet of this ether type.
    pub fn write(&self, ether_type: u16, frame: &mut Vec<u8>) {
        frame.extend(self.destination);
        frame.extend(self.source);
        frame.extend(self.tags.iter().flatten().flat_map(|tag| tag.to_bytes()));
        frame.extend(ether_type.to_be_bytes());
    }
}

/// Source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

impl Addresses {
    /// Addresses of IPv4 if both are mapped to IPv6 (`::ffff:a.b.c.d`, RFC 4291), else of IPv6.
    pub fn of_mapped(source: [u8; 16], destination: [u8; 16]) -> Self {
        let v4 = |address: [u8; 16]| match address {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        };
        match (v4(source), v4(destination)) {
            (Some(source), Some(destination)) => Self::V4(source, destination),
            _ => Self::V6(source, destination),
        }
    }

    /// Checksum of the pseudo-header of a segment or datagram of `bytes`.
    fn pseudo_header(&self, protocol: u8, bytes: usize) -> u16 {
        let addresses = match self {
            Self::V4(source, destination) => add(sum(source), sum(destination)),
            Self::V6(source, destination) => add(sum(source), sum(destination)),
        };
        add(addresses, add(protocol.into(), bytes as u16))
    }
}

/// The headers below TCP or UDP.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub ethernet: Ethernet,
    pub addresses: Addresses,
    /// TOS of IPv4, traffic class of IPv6; the ECN field is its lower two bits (RFC 3168).
    pub traffic_class: u8,
    /// Identification of IPv4; may be 0, since packets are not to be fragmented (RFC 6864).
    pub identification: u16,
    /// TTL of IPv4, hop limit of IPv6.
    pub ttl: u8,
}

impl Route {
    /// With the most usual values of the other fields.
    pub fn new(ethernet: Ethernet, addresses: Addresses) -> Self {
        Self { ethernet, addresses, traffic_class: 0, identification: 0, ttl: HOP_LIMIT }
    }

    /// Appends Ethernet and IP header of a packet with `bytes` of IP payload.
    fn write(&self, protocol: u8, bytes: usize, frame: &mut Vec<u8>) {
        match self.addresses {
            Addresses::V4(source, destination) => {
                self.ethernet.write(IPV4, frame);
                let mut header = Ipv4Header {
                    version_ihl: 0x45,
                    tos: self.traffic_class,
                    total_length: ((IPV4_BYTES + bytes) as u16).into(),
                    identification: self.identification.into(),
                    fragment: Ipv4Header::DONT_FRAGMENT.into(),
                    ttl: self.ttl,
                    protocol,
                    checksum: 0.into(),
                    source,
                    destination,
                };
                header.checksum = (!sum(header.as_bytes())).into();
                frame.extend(header.as_bytes());
            }
            Addresses::V6(source, destination) => {
                self.ethernet.write(IPV6, frame);
                let header = Ipv6Header {
                    version_class_flow: (6 << 28 | u32::from(self.traffic_class) << 20).into(),
                    payload_length: (bytes as u16).into(),
                    next_header: protocol,
                    hop_limit: self.ttl,
                    source,
                    destination,
                };
                frame.extend(header.as_bytes());
            }
        }
    }
}

/// A frame with a TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct TcpFrame<'a> {
    pub route: Route,
    pub source_port: u16,
    pub destination_port: u16,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u8,
    pub window: u16,
    /// Padded to a multiple of 4 bytes; at most 40.
    pub options: &'a [u8],
}

impl TcpFrame<'_> {
    /// An ACK without window or options.
    pub fn new(route: Route, source_port: u16, destination_port: u16) -> Self {
        Self {
            route,
            source_port,
            destination_port,
            sequence: 0,
            acknowledgment: 0,
            flags: ACK,
            window: 0,
            options: &[],
        }
    }

    /// Appends all headers of a segment with `bytes` of payload, with a partial checksum.
    pub fn write_headers(&self, payload_bytes: usize, frame: &mut Vec<u8>) {
        let header_bytes = TCP_BYTES + self.options.len();
        let bytes = header_bytes + payload_bytes;
        self.route.write(TCP, bytes, frame);
        let header = TcpHeader {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            sequence: self.sequence.into(),
            acknowledgment: self.acknowledgment.into(),
            data_offset: ((header_bytes / 4) << 4) as u8,
            flags: self.flags,
            window: self.window.into(),
            checksum: self.route.addresses.pseudo_header(TCP, bytes).into(),
            urgent: 0.into(),
        };
        frame.extend(header.as_bytes());
        frame.extend(self.options);
    }

    /// The frame, its checksum partial: the sum of the pseudo-header.
    pub fn partial(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(128 + payload.len());
        self.write_headers(payload.len(), &mut frame);
        frame.extend(payload);
        frame
    }

    /// The frame with a complete checksum.
    pub fn build(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = self.partial(payload);
        checksum::complete(&mut frame);
        frame
    }
}

/// A frame with a UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct UdpFrame {
    pub route: Route,
    pub source_port: u16,
    pub destination_port: u16,
}

impl UdpFrame {
    /// The frame, its checksum partial: the sum of the pseudo-header.
    pub fn partial(&self, payload: &[u8]) -> Vec<u8> {
        let bytes = UDP_BYTES + payload.len();
        let mut frame = Vec::with_capacity(128 + bytes);
        self.route.write(UDP, bytes, &mut frame);
        let header = UdpHeader {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            length: (bytes as u16).into(),
            checksum: self.route.addresses.pseudo_header(UDP, bytes).into(),
        };
        frame.extend(header.as_bytes());
        frame.extend(payload);
        frame
    }

    /// The frame with a complete checksum.
    pub fn build(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = self.partial(payload);
        checksum::complete(&mut frame);
        frame
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};

    use super::*;
    use crate::format::{CE, FIN, PSH};
    use crate::options;

    const V4: Addresses = Addresses::V4([10, 0, 0, 1], [10, 0, 0, 2]);
    const V6: Addresses = Addresses::V6([0xfd; 16], [0xfc; 16]);

    fn route(addresses: Addresses) -> Route {
        let ethernet = Ethernet { source: [2; 6], destination: [4; 6], ..Ethernet::default() };
        Route::new(ethernet, addresses)
    }

    #[test]
    fn frames_are_those_of_another_builder() {
        for addresses in [V4, V6] {
            for payload in [&b""[..], b"a", b"some", &[0xff; 1400]] {
                let builder = || {
                    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
                    match addresses {
                        Addresses::V4(source, destination) => builder.ipv4(source, destination, 64),
                        Addresses::V6(source, destination) => builder.ipv6(source, destination, 64),
                    }
                };
                let mut tcp = Vec::new();
                let timestamps = [
                    TcpOptionElement::Noop,
                    TcpOptionElement::Noop,
                    TcpOptionElement::Timestamp(7, 8),
                ];
                let segment = builder().tcp(1000, 80, 0xffff_fff0, 500).ack(77).psh().fin();
                let segment = segment.options(&timestamps).expect("room");
                segment.write(&mut tcp, payload).expect("room");
                let options = options::timestamps(7, 8);
                let ours = TcpFrame {
                    sequence: 0xffff_fff0,
                    acknowledgment: 77,
                    flags: ACK | PSH | FIN,
                    window: 500,
                    options: &options,
                    ..TcpFrame::new(route(addresses), 1000, 80)
                };
                assert_eq!(ours.build(payload), tcp);

                let mut udp = Vec::new();
                builder().udp(1000, 53).write(&mut udp, payload).expect("room");
                let route = route(addresses);
                let ours = UdpFrame { route, source_port: 1000, destination_port: 53 };
                assert_eq!(ours.build(payload), udp);
            }
        }
    }

    #[test]
    fn another_parser_finds_tags_class_and_identification() {
        for addresses in [V4, V6] {
            let mut route = route(addresses);
            route.ethernet.tags = [Some(Tag::service(5)), Some(Tag::customer(6))];
            (route.traffic_class, route.identification) = (CE, 9);
            let frame = TcpFrame::new(route, 1, 2).build(b"data");
            assert_eq!(frame[12..20], [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]);
            let sliced = SlicedPacket::from_ethernet(&frame).expect("well-formed");
            assert_eq!(sliced.link_exts.len(), 2);
            match sliced.net.expect("IP") {
                NetSlice::Ipv4(ip) => {
                    let header = ip.header();
                    assert_eq!((header.ecn().value(), header.identification()), (CE, 9));
                    assert!(header.dont_fragment());
                }
                NetSlice::Ipv6(ip) => assert_eq!(ip.header().ecn().value(), CE),
                NetSlice::Arp(_) => panic!("ARP"),
            }
            let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
            assert_eq!(tcp.payload(), b"data");
        }
    }

    #[test]
    fn addresses_are_of_ipv4_if_both_are_mapped() {
        let mapped = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
        assert_eq!(Addresses::of_mapped(mapped(1), mapped(2)), V4);
        let other = Addresses::of_mapped(mapped(1), [0xfd; 16]);
        assert_eq!(other, Addresses::V6(mapped(1), [0xfd; 16]));
    }
}
