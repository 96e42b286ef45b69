//! Frames to parse: well-formed ones from a description, in memory that ends where the frame ends.

use proptest::prelude::*;
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::checksum;
use vsnoop_packet::format::{SERVICE_VLAN, Tag, VLAN};
use vsnoop_packet::headers::Headers;

pub const DST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const SRC_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

#[derive(Clone, Debug)]
pub enum TcpOption {
    Nop,
    Mss(u16),
    Scale(u8),
    SackPermitted,
    /// Left and right edges.
    Sack(Vec<(u32, u32)>),
    Timestamps(u32, u32),
    FastOpen(Vec<u8>),
    /// An option that is not understood.
    Foreign(u8, Vec<u8>),
}

impl TcpOption {
    pub fn bytes(&self) -> Vec<u8> {
        let kind = |kind: u8, body: &[u8]| {
            let mut v = vec![kind, body.len() as u8 + 2];
            v.extend_from_slice(body);
            v
        };
        match self {
            TcpOption::Nop => vec![1],
            TcpOption::Mss(mss) => kind(2, &mss.to_be_bytes()),
            TcpOption::Scale(shift) => kind(3, &[*shift]),
            TcpOption::SackPermitted => kind(4, &[]),
            TcpOption::Sack(blocks) => {
                let words = blocks.iter().flat_map(|b| [b.0, b.1]);
                kind(5, &words.flat_map(u32::to_be_bytes).collect::<Vec<_>>())
            }
            TcpOption::Timestamps(v, e) => kind(8, &[v.to_be_bytes(), e.to_be_bytes()].concat()),
            TcpOption::FastOpen(cookie) => kind(34, cookie),
            TcpOption::Foreign(k, body) => kind(*k, body),
        }
    }
}

#[derive(Clone, Debug)]
pub struct TestFrame {
    pub ipv6: bool,
    pub tags: Vec<u16>,
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub sport: u16,
    pub dport: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    /// The four bits beside the data offset.
    pub reserved: u8,
    pub window: u16,
    pub ecn: u8,
    pub options: Vec<TcpOption>,
    pub payload: Vec<u8>,
    /// Ethernet padding behind the IP packet.
    pub padding: usize,
}

impl TestFrame {
    /// Turns the frame into one over IPv4, between addresses that end alike.
    pub fn over_ipv4(mut self) -> Self {
        self.ipv6 = false;
        for address in [&mut self.src, &mut self.dst] {
            address[..10].fill(0);
            address[10..12].fill(0xff);
        }
        self
    }

    pub fn options_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for option in &self.options {
            let bytes = option.bytes();
            if all.len() + bytes.len() <= 40 {
                all.extend(bytes);
            }
        }
        // Ends with end-of-options, then zeros.
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    /// The options that fit.
    pub fn fitting(&self) -> Vec<&TcpOption> {
        let mut len = 0;
        self.options
            .iter()
            .filter(|o| {
                let fits = len + o.bytes().len() <= 40;
                len += if fits { o.bytes().len() } else { 0 };
                fits
            })
            .collect()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let options = self.options_bytes();
        let tag = |at: usize, ether_type| Some(Tag { ether_type, id: *self.tags.get(at)? });
        let outer = if self.tags.len() > 1 { SERVICE_VLAN } else { VLAN };
        let ethernet =
            Ethernet { source: SRC_MAC, destination: DST_MAC, tags: [tag(0, outer), tag(1, VLAN)] };
        let addresses = Addresses::of_mapped(self.src, self.dst);
        let route =
            Route { traffic_class: self.ecn, identification: 7, ..Route::new(ethernet, addresses) };
        let segment = TcpFrame {
            route,
            source_port: self.sport,
            destination_port: self.dport,
            sequence: self.seq,
            acknowledgment: self.ack,
            flags: self.flags,
            window: self.window,
            options: &options,
        };
        let mut frame = segment.partial(&self.payload);
        frame[self.tcp_at() + 12] |= self.reserved;
        checksum::complete(&mut frame);
        frame.extend(vec![0xee; self.padding]);
        frame
    }

    /// Puts the IPv4 header's checksum right.
    pub fn mend_ip(&self, bytes: &mut [u8]) {
        if self.ipv6 {
            return;
        }
        let tcp = self.tcp_at();
        checksum::complete_ipv4(&mut bytes[tcp - 20..tcp]);
    }

    pub fn ip_len(&self) -> usize {
        if self.ipv6 { 40 } else { 20 }
    }

    pub fn tcp_at(&self) -> usize {
        14 + 4 * self.tags.len() + self.ip_len()
    }

    /// Is the TCP checksum of these bytes, built from this description, right?
    pub fn checksum_is_good(&self, bytes: &[u8]) -> bool {
        let headers = Headers::parse(bytes).filter(Headers::tcp);
        headers.is_some_and(|headers| checksum::transport_is_right(&headers, bytes))
    }
}

pub fn option() -> impl Strategy<Value = TcpOption> {
    prop_oneof![
        4 => Just(TcpOption::Nop),
        1 => any::<u16>().prop_map(TcpOption::Mss),
        1 => any::<u8>().prop_map(TcpOption::Scale),
        1 => Just(TcpOption::SackPermitted),
        2 => prop::collection::vec(any::<(u32, u32)>(), 1..5).prop_map(TcpOption::Sack),
        2 => any::<(u32, u32)>().prop_map(|(v, e)| TcpOption::Timestamps(v, e)),
        1 => prop::collection::vec(any::<u8>(), 0..16).prop_map(TcpOption::FastOpen),
        1 => (prop_oneof![Just(19u8), Just(29), Just(30), 9u8..34, 35u8..=255],
              prop::collection::vec(any::<u8>(), 0..8))
            .prop_map(|(kind, body)| TcpOption::Foreign(kind, body)),
    ]
}

pub fn frame() -> impl Strategy<Value = TestFrame> {
    let address = any::<([u8; 16], [u8; 16], u16, u16)>();
    let header = (any::<(u32, u32, u8, u16)>(), prop_oneof![9 => Just(0u8), 1 => 1u8..16], 0u8..4);
    let shape = (
        any::<bool>(),
        prop::collection::vec(any::<u16>(), 0..3),
        prop::collection::vec(option(), 0..6),
        prop::collection::vec(any::<u8>(), 0..300),
        0usize..8,
    );
    (address, header, shape).prop_map(|(address, (header, reserved, ecn), shape)| {
        let (mut src, mut dst, sport, dport) = address;
        let (ipv6, tags, options, payload, padding) = shape;
        if !ipv6 {
            for a in [&mut src, &mut dst] {
                a[..10].fill(0);
                a[10..12].fill(0xff);
            }
        }
        TestFrame {
            ipv6,
            tags,
            src,
            dst,
            sport,
            dport,
            seq: header.0,
            ack: header.1,
            flags: header.2,
            reserved,
            window: header.3,
            ecn,
            options,
            payload,
            padding,
        }
    })
}

/// A copy of some bytes at the end of readable memory: an access one byte too far kills the
/// process.
pub struct Guarded {
    map: *mut libc::c_void,
    map_len: usize,
    len: usize,
}

impl Guarded {
    pub fn new(bytes: &[u8]) -> Self {
        const PAGE: usize = 4096;
        let pages = bytes.len().div_ceil(PAGE).max(1);
        let map_len = (pages + 1) * PAGE;
        // SAFETY: a new anonymous mapping, whose last page is then closed.
        let map = unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(map.byte_add(pages * PAGE), PAGE, libc::PROT_NONE), 0);
            map
        };
        let mut guarded = Guarded { map, map_len, len: bytes.len() };
        guarded.bytes().copy_from_slice(bytes);
        guarded
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        let start = self.map_len - 4096 - self.len;
        // SAFETY: the last `len` bytes before the closed page, owned by self.
        unsafe { std::slice::from_raw_parts_mut(self.map.byte_add(start).cast(), self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of new(), of which no reference is left.
        unsafe { libc::munmap(self.map, self.map_len) };
    }
}
