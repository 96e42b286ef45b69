//! Segments as bytes: Ethernet, IPv4 or IPv6, TCP with its options, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use vsnoop_flow::testing::segment::{ACK, RST, SYN, Seg};

use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::checksum::{ip_is_right, transport_is_right};
use vsnoop_packet::format::{CE, ETHERNET_BYTES, IPV4, IPV6, TCP_CHECKSUM, Tag};
use vsnoop_packet::options::{MSS, SACK, SACK_PERMITTED, TIMESTAMPS, WINDOW_SCALE, timestamps};

use crate::frame::{Frame, Summed, complete_checksum};
use crate::layout::{self, sum};

/// The kind of an experimental TCP option (RFC 4727), which no end understands.
const FOREIGN: u8 = 253;

/// The addresses of a connection, and the path of its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub sender: (IpAddr, u16),
    pub vm: (IpAddr, u16),
    pub vm_mac: [u8; 6],
    /// Source of frames for the VM.
    pub from_mac: [u8; 6],
    /// Destination of the VM's frames; another router if the paths differ.
    pub next_hop: [u8; 6],
    /// The VLAN tag in the frames.
    pub vlan: Option<u16>,
}

/// The SYN-ACK of another socket of the VM, with an ISN of its own, for a sender with this ISN.
pub fn other_syn_ack(iss: u32, sender_iss: u32, path: &Path) -> Frame {
    let mut s = Seg::bare(iss, sender_iss.wrapping_add(1), SYN | ACK);
    (s.window, s.scale) = (65_535, Some(7));
    encode(&s, path, false, Summed::Unnecessary)
}

impl Path {
    /// The path of connection `number` of VM `vm`.
    pub fn new(vm: u8, number: u16, ipv6: bool) -> Self {
        let address = |host: u8, last: u8| -> IpAddr {
            if ipv6 {
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, host.into(), last.into()).into()
            } else {
                Ipv4Addr::new(10, 0, host, last).into()
            }
        };
        Self {
            sender: (address(1, 1), 40_000 + number),
            vm: (address(2, 1 + vm), 5_000 + number),
            vm_mac: [2, 0, 0, 0, 2, vm],
            from_mac: [2, 0, 0, 0, 1, 1],
            next_hop: [2, 0, 0, 0, 1, 1],
            vlan: None,
        }
    }

    /// Returns the path that the sender sees: the sender is in the place of the VM.
    pub fn of_sender(&self) -> Self {
        Self { sender: self.vm, vm: self.sender, ..self.clone() }
    }

    /// The Ethernet header, with the VLAN.
    fn ethernet(&self, to_vm: bool) -> Ethernet {
        let (destination, source) =
            if to_vm { (self.vm_mac, self.from_mac) } else { (self.next_hop, self.vm_mac) };
        Ethernet { source, destination, tags: [self.vlan.map(Tag::customer), None] }
    }
}

/// A frame of the VM around a whole IP packet.
pub fn framed(packet: &[u8], path: &Path) -> Frame {
    let mut bytes = Vec::with_capacity(packet.len() + 18);
    let ether_type = if packet[0] >> 4 == 6 { IPV6 } else { IPV4 };
    path.ethernet(false).write(ether_type, &mut bytes);
    bytes.extend(packet);
    let mut frame = Frame::new(bytes);
    frame.summed = Summed::Unnecessary;
    frame
}

/// Encodes the segment as a frame, to the VM or from it. A corrupt one has a wrong checksum; for
/// others `summed` is its state.
pub fn encode(s: &Seg, path: &Path, to_vm: bool, summed: Summed) -> Frame {
    let (from, to) = if to_vm { (path.sender, path.vm) } else { (path.vm, path.sender) };
    let addresses = match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Addresses::V4(from.octets(), to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => Addresses::V6(from.octets(), to.octets()),
        _ => unreachable!("both ends have addresses of one kind"),
    };
    let traffic_class = if s.ce { CE } else { 0 };
    let route = Route { traffic_class, ..Route::new(path.ethernet(to_vm), addresses) };
    let segment = TcpFrame {
        route,
        source_port: from.1,
        destination_port: to.1,
        sequence: s.seq,
        acknowledgment: s.ack,
        flags: s.flags,
        window: s.window,
        options: &options(s),
    };
    let mut frame = Frame::new(segment.partial(&s.data));
    if s.unit != 0 && s.data.len() > usize::from(s.unit) {
        frame.gso_size = s.unit.into();
    }
    frame.summed = if s.corrupt { Summed::None } else { summed };
    if frame.summed != Summed::Partial {
        complete_checksum(&mut frame.bytes);
    }
    if s.corrupt {
        let tcp = layout::tcp_offset(&frame.bytes).expect("TCP");
        frame.bytes[tcp + usize::from(TCP_CHECKSUM)] ^= 0x55;
        frame.gso_size = 0;
    }
    if let Summed::Complete(total) = &mut frame.summed {
        *total = sum(&frame.bytes[ETHERNET_BYTES..]);
    }
    frame
}

fn options(s: &Seg) -> Vec<u8> {
    let mut bytes = Vec::new();
    if s.has(SYN) {
        // MSS option: 1460; the ends use the MSS of the scenario.
        bytes.extend([2, 4, 5, 0xb4]);
    }
    if s.sack_permitted {
        bytes.extend([1, 1, 4, 2]);
    }
    if let Some(scale) = s.scale {
        bytes.extend([1, 3, 3, scale]);
    }
    if let Some((value, echo)) = s.ts {
        bytes.extend(timestamps(value, echo));
    }
    if s.foreign {
        bytes.extend([FOREIGN, 4, 0, 0]);
    }
    let room = (40 - bytes.len()).saturating_sub(4) / 8;
    let blocks = &s.sack[..s.sack.len().min(room)];
    if !blocks.is_empty() {
        bytes.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
        for (left, right) in blocks {
            bytes.extend(left.to_be_bytes());
            bytes.extend(right.to_be_bytes());
        }
    }
    bytes
}

/// Decodes a frame; `None` if it is not TCP, or the receiver's stack drops it, for example for a
/// wrong checksum that was not verified before.
pub fn decode(frame: &Frame) -> Option<Seg> {
    let mut frame = frame.clone();
    frame.settle();
    let bytes = &frame.bytes;
    let headers = layout::headers(bytes)?;
    let tcp = headers.tcp_header(bytes)?;
    if !ip_is_right(&headers, bytes) {
        return None;
    }
    assert_eq!(headers.end as usize, bytes.len(), "a wrong length: {bytes:02x?}");
    if !transport_is_right(&headers, bytes) {
        return None;
    }
    let mut s = Seg::bare(tcp.sequence.get(), tcp.acknowledgment.get(), tcp.flags);
    s.window = tcp.window.get();
    s.data = Rc::from(headers.payload_of(bytes));
    s.unit = if frame.gso_size == 0 { s.data.len() as u16 } else { frame.gso_size as u16 };
    let class = bytes[usize::from(headers.ip) + 1] >> if headers.v6 { 4 } else { 0 };
    s.ce = class & 3 == CE;
    let mut options = headers.tcp_options(bytes);
    for option in options.by_ref() {
        let words = |at| option.word(at).zip(option.word(at + 1));
        match option.kind {
            MSS => {}
            WINDOW_SCALE => s.scale = option.value.first().copied(),
            SACK_PERMITTED => s.sack_permitted = true,
            SACK => s.sack = (0..option.value.len() / 8).filter_map(|i| words(2 * i)).collect(),
            TIMESTAMPS => s.ts = words(0),
            _ => s.foreign = true,
        }
    }
    if !options.is_at_end() {
        return None;
    }
    if s.has(RST) {
        s.ts = None;
    }
    Some(s)
}
