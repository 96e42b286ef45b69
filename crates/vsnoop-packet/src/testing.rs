//! Frames for the tests of this crate, built by `etherparse`.

use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6Header, TcpHeader};

use crate::edit::{Tag, push_tag};
use crate::packet::{Packet, Pool};
use crate::vnet::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VirtioNetHdr};

#[derive(Clone, Copy)]
pub enum Addresses {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

pub const V4: Addresses = Addresses::V4([10, 0, 0, 1], [10, 0, 0, 2]);
pub const V6: Addresses = Addresses::V6([0xfd; 16], [0xfc; 16]);

/// A TCP segment with timestamps (32 bytes of header).
pub struct TcpFrame {
    pub addresses: Addresses,
    pub tags: usize,
    pub payload: usize,
    pub sequence: u32,
    pub fin: bool,
    pub psh: bool,
    pub cwr: bool,
    pub ect: bool,
}

impl Default for TcpFrame {
    fn default() -> Self {
        Self {
            addresses: V4,
            tags: 0,
            payload: 0,
            sequence: 1_000_000,
            fin: false,
            psh: false,
            cwr: false,
            ect: false,
        }
    }
}

impl TcpFrame {
    pub fn payload_bytes(&self) -> Vec<u8> {
        (0..self.payload).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    /// The frame with complete checksums.
    pub fn build(&self) -> Vec<u8> {
        let payload = self.payload_bytes();
        let mut tcp = TcpHeader::new(1234, 80, self.sequence, 29_200);
        tcp.ack = true;
        (tcp.fin, tcp.psh, tcp.cwr) = (self.fin, self.psh, self.cwr);
        tcp.set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).expect("options fit");
        let segment_bytes = tcp.header_len() + payload.len();
        let ip = match self.addresses {
            Addresses::V4(source, destination) => {
                let mut ip =
                    Ipv4Header::new(segment_bytes as u16, 64, IpNumber::TCP, source, destination)
                        .expect("fits");
                ip.identification = 7;
                ip.ecn = if self.ect { etherparse::IpEcn::TWO } else { etherparse::IpEcn::ZERO };
                ip.header_checksum = ip.calc_header_checksum();
                tcp.checksum = tcp.calc_checksum_ipv4(&ip, &payload).expect("fits");
                IpHeaders::Ipv4(ip, Default::default())
            }
            Addresses::V6(source, destination) => {
                let mut ip = Ipv6Header {
                    payload_length: segment_bytes as u16,
                    next_header: IpNumber::TCP,
                    hop_limit: 64,
                    source,
                    destination,
                    ..Default::default()
                };
                ip.set_ecn(if self.ect { etherparse::IpEcn::TWO } else { etherparse::IpEcn::ZERO });
                tcp.checksum = tcp.calc_checksum_ipv6(&ip, &payload).expect("fits");
                IpHeaders::Ipv6(ip, Default::default())
            }
        };
        let ether_type = match self.addresses {
            Addresses::V4(..) => [8, 0],
            Addresses::V6(..) => [0x86, 0xdd],
        };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend_from_slice(&ether_type);
        ip.write(&mut frame).expect("a vector takes all");
        tcp.write(&mut frame).expect("a vector takes all");
        frame.extend_from_slice(&payload);

        let mut packet = Pool::default().take();
        packet.fill(VirtioNetHdr::default(), &frame);
        for id in 0..self.tags {
            push_tag(&mut packet, Tag::customer(id as u16 + 1));
        }
        packet.frame().to_vec()
    }

    /// The frame with its TCP checksum left to do.
    pub fn build_partial(&self, packet: &mut Packet) {
        packet.fill(VirtioNetHdr::default(), &self.build());
        let ip_bytes = match self.addresses {
            Addresses::V4(..) => 20,
            Addresses::V6(..) => 40,
        };
        let ip = 14 + 4 * self.tags;
        let start = ip + ip_bytes;
        let segment_bytes = packet.frame().len() - start;
        let sum = etherparse::checksum::Sum16BitWords::new()
            .add_2bytes([0, IpNumber::TCP.0])
            .add_2bytes((segment_bytes as u16).to_be_bytes());
        let sum = match self.addresses {
            Addresses::V4(source, destination) => sum.add_slice(&source).add_slice(&destination),
            Addresses::V6(source, destination) => sum.add_slice(&source).add_slice(&destination),
        };
        let field = start + 16;
        packet.frame_mut()[field..field + 2]
            .copy_from_slice(&(!sum.ones_complement()).to_ne_bytes());
        packet.header.flags = NEEDS_CSUM;
        packet.header.csum_start.set(start as u16);
        packet.header.csum_offset.set(16);
    }

    /// A super-packet, its checksum left to do.
    pub fn build_super_packet(&self, packet: &mut Packet, segment_bytes: u16) {
        self.build_partial(packet);
        packet.header.gso_type = match self.addresses {
            Addresses::V4(..) => GSO_TCPV4,
            Addresses::V6(..) => GSO_TCPV6,
        };
        packet.header.gso_size.set(segment_bytes);
        packet.header.hdr_len.set(packet.header.csum_start.get() + 32);
    }
}
