//! TCP segments and UDP datagrams for tests, here and in the crates above.

use crate::builder::{Addresses, Ethernet, Route, TcpFrame, UdpFrame};
use crate::format::{ACK, Tag};
use crate::headers::Headers;
use crate::offload::{Gso, GsoKind, OffloadState};
use crate::options;
use crate::vnet::{GSO_UDP_L4, VirtioNetHdr};

/// A segment with timestamps (32 bytes of TCP header).
#[derive(Clone, Debug)]
pub struct SegmentBuilder {
    pub v6: bool,
    /// How many VLAN tags there are; at most 2.
    pub tags: usize,
    pub port: u16,
    pub sequence: u32,
    pub acknowledged: u32,
    pub window: u16,
    pub timestamp: u32,
    pub identification: u16,
    pub traffic_class: u8,
    pub flags: u8,
    pub payload: usize,
}

impl Default for SegmentBuilder {
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
            traffic_class: 0,
            flags: ACK,
            payload: 0,
        }
    }
}

impl SegmentBuilder {
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
        self.with(|frame| frame.build(&self.payload_bytes()))
    }

    /// The frame with a partial checksum; a super-packet if `gso_size` is given, of that size, as
    /// a VM chooses it.
    pub fn partial(&self, gso_size: Option<u16>) -> (VirtioNetHdr, Vec<u8>) {
        let frame = self.with(|frame| frame.partial(&self.payload_bytes()));
        let kind = if self.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = gso_size.map(|size| Gso { kind, size, ecn: false });
        let mut header = header(&frame, gso);
        if let Some(size) = gso_size.filter(|_| header.is_super_packet()) {
            header.gso_size.set(size);
        }
        (header, frame)
    }

    fn with(&self, write: impl FnOnce(TcpFrame<'_>) -> Vec<u8>) -> Vec<u8> {
        let route = route(self.v6, self.tags, self.identification);
        let route = Route { traffic_class: self.traffic_class, ..route };
        write(TcpFrame {
            sequence: self.sequence,
            acknowledgment: self.acknowledged,
            flags: self.flags,
            window: self.window,
            options: &options::timestamps(self.timestamp, 0),
            ..TcpFrame::new(route, self.port, 80)
        })
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
        self.frame().build(&self.payload)
    }

    /// The frame with a partial checksum, a super-packet of datagrams of `size`.
    pub fn partial(&self, size: u16) -> (VirtioNetHdr, Vec<u8>) {
        let frame = self.frame().partial(&self.payload);
        let mut header = header(&frame, None);
        header.gso_type = GSO_UDP_L4;
        header.gso_size.set(size);
        header.hdr_len = (header.csum_start.get() + 8).into();
        (header, frame)
    }

    fn frame(&self) -> UdpFrame {
        let route = route(self.v6, self.tags, self.identification);
        UdpFrame { route, source_port: 0x1234, destination_port: 80 }
    }
}

fn route(v6: bool, tags: usize, identification: u16) -> Route {
    let tags = match tags {
        0 => [None, None],
        1 => [Some(Tag::customer(100)), None],
        _ => [Some(Tag::service(100)), Some(Tag::customer(101))],
    };
    let (source, destination) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let ethernet = Ethernet { source, destination, tags };
    let addresses = if v6 {
        Addresses::V6([0xfd; 16], [0xfc; 16])
    } else {
        Addresses::V4([10, 0, 0, 1], [10, 0, 0, 2])
    };
    Route { identification, ..Route::new(ethernet, addresses) }
}

fn header(frame: &[u8], gso: Option<Gso>) -> VirtioNetHdr {
    OffloadState { needs_checksum: true, gso }.header(Headers::parse(frame).as_ref(), frame.len())
}
