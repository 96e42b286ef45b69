//! TCP segments and UDP datagrams for the tests of this room, written byte by byte.

use vsnoop_packet::vnet::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHdr};

use super::checksum::{add, sum};
use super::headers::{ACK, Headers};

/// A segment with timestamps (32 bytes of TCP header).
#[derive(Clone, Debug)]
pub struct Segment {
    pub v6: bool,
    pub tags: usize,
    pub port: u16,
    pub sequence: u32,
    pub acknowledged: u32,
    pub window: u16,
    pub timestamp: u32,
    pub identification: u16,
    pub flags: u8,
    pub payload: usize,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            v6: false,
            tags: 0,
            port: 1234,
            sequence: 1_000_000,
            acknowledged: 77,
            window: 500,
            timestamp: 1,
            identification: 7,
            flags: ACK,
            payload: 0,
        }
    }
}

impl Segment {
    /// The payload is a function of the sequence number, so that a misplaced byte is seen.
    pub fn payload_bytes(&self) -> Vec<u8> {
        (0..self.payload as u32)
            .map(|at| {
                let at = self.sequence.wrapping_add(at);
                (at.wrapping_mul(0x9e37_79b1) >> 24) as u8
            })
            .collect()
    }

    /// The frame with complete checksums.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = self.open();
        let headers = Headers::of(&frame).expect("well-formed");
        let l4 = usize::from(headers.l4);
        let whole = add(self.pseudo(&frame), sum(&frame[l4..]));
        frame[l4 + 16..l4 + 18].copy_from_slice(&(!whole).to_be_bytes());
        frame
    }

    /// The frame with its checksum left to do, and perhaps to be cut.
    pub fn partial(&self, gso_size: Option<u16>) -> (VirtioNetHdr, Vec<u8>) {
        let mut frame = self.open();
        let headers = Headers::of(&frame).expect("well-formed");
        let l4 = usize::from(headers.l4);
        let pseudo = self.pseudo(&frame);
        frame[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
        let mut header = VirtioNetHdr {
            flags: NEEDS_CSUM,
            csum_start: headers.l4.into(),
            csum_offset: 16.into(),
            ..VirtioNetHdr::default()
        };
        if let Some(size) = gso_size {
            header.gso_type = if self.v6 { GSO_TCPV6 } else { GSO_TCPV4 };
            header.gso_size.set(size);
            header.hdr_len.set(headers.payload);
        }
        (header, frame)
    }

    fn pseudo(&self, frame: &[u8]) -> u16 {
        pseudo(self.v6, self.tags, 6, frame)
    }

    /// The frame with a TCP checksum of 0.
    fn open(&self) -> Vec<u8> {
        let tcp_bytes = 32 + self.payload;
        let mut frame = below(self.v6, self.tags, self.identification, 6, tcp_bytes);
        frame.extend(self.port.to_be_bytes());
        frame.extend(80u16.to_be_bytes());
        frame.extend(self.sequence.to_be_bytes());
        frame.extend(self.acknowledged.to_be_bytes());
        frame.extend([0x80, self.flags]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend([1, 1, 8, 10]);
        frame.extend(self.timestamp.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(self.payload_bytes());
        frame
    }
}

/// A datagram to port 80.
#[derive(Clone, Debug, Default)]
pub struct Datagram {
    pub v6: bool,
    pub tags: usize,
    pub identification: u16,
    pub payload: Vec<u8>,
}

impl Datagram {
    /// The frame with complete checksums.
    pub fn build(&self) -> Vec<u8> {
        let (_, mut frame) = self.partial(0);
        complete(&mut frame);
        frame
    }

    /// The frame with its checksum left to do, a super-packet of datagrams of `size`.
    pub fn partial(&self, size: u16) -> (VirtioNetHdr, Vec<u8>) {
        let udp_bytes = 8 + self.payload.len();
        let mut frame = below(self.v6, self.tags, self.identification, 17, udp_bytes);
        let l4 = frame.len();
        frame.extend([0x12, 0x34, 0, 80]);
        frame.extend((udp_bytes as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(&self.payload);
        let pseudo = pseudo(self.v6, self.tags, 17, &frame);
        frame[l4 + 6..l4 + 8].copy_from_slice(&pseudo.to_be_bytes());
        let header = VirtioNetHdr {
            flags: NEEDS_CSUM,
            gso_type: GSO_UDP_L4,
            gso_size: size.into(),
            hdr_len: (l4 as u16 + 8).into(),
            csum_start: (l4 as u16).into(),
            csum_offset: 6.into(),
            ..VirtioNetHdr::default()
        };
        (header, frame)
    }
}

/// Ethernet and IP header of a packet that carries so many bytes.
fn below(v6: bool, tags: usize, identification: u16, protocol: u8, bytes: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        let kind: u16 = if tag + 1 < tags { 0x88a8 } else { 0x8100 };
        frame.extend(kind.to_be_bytes());
        frame.extend((100 + tag as u16).to_be_bytes());
    }
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((bytes as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0xfd; 16]);
        frame.extend([0xfc; 16]);
    } else {
        frame.extend([8, 0]);
        let mut ip = vec![0x45, 0];
        ip.extend((20 + bytes as u16).to_be_bytes());
        ip.extend(identification.to_be_bytes());
        ip.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let header = !sum(&ip);
        ip[10..12].copy_from_slice(&header.to_be_bytes());
        frame.extend(ip);
    }
    frame
}

/// Sum of the pseudo-header of a frame without padding.
fn pseudo(v6: bool, tags: usize, protocol: u16, frame: &[u8]) -> u16 {
    let ip = 14 + 4 * tags;
    let (addresses, l4) = if v6 { (ip + 8..ip + 40, ip + 40) } else { (ip + 12..ip + 20, ip + 20) };
    add(add(sum(&frame[addresses]), protocol), (frame.len() - l4) as u16)
}

/// Completes the partial TCP or UDP checksum of a frame, by the plainest means.
pub fn complete(frame: &mut [u8]) {
    let headers = Headers::of(frame).expect("IP");
    let l4 = usize::from(headers.l4);
    let at = l4 + if headers.tcp() { 16 } else { 6 };
    let whole = match !sum(&frame[l4..headers.end as usize]) {
        0 if headers.udp() => 0xffff,
        sum => sum,
    };
    frame[at..at + 2].copy_from_slice(&whole.to_be_bytes());
}
