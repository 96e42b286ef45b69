//! Segments as bytes: Ethernet, IPv4 or IPv6, TCP with its options, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use vsnoop_flow::testing::segment::{RST, SYN, Seg};

use crate::frame::{Frame, Summed};
use crate::layout::{
    CHECK, ETHERNET, IPV4, IPV6, TCP, TYPE_IPV4, TYPE_IPV6, complete_checksum, fold, ip, is_right,
    pseudo, sum, tcp_offset,
};

const CE: u8 = 3;
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

    /// The Ethernet header, with the VLAN.
    fn ethernet(&self, to_vm: bool, ipv6: bool, bytes: &mut Vec<u8>) {
        let (to, from) =
            if to_vm { (self.vm_mac, self.from_mac) } else { (self.next_hop, self.vm_mac) };
        bytes.extend(to);
        bytes.extend(from);
        if let Some(vlan) = self.vlan {
            bytes.extend([0x81, 0]);
            bytes.extend(vlan.to_be_bytes());
        }
        bytes.extend(if ipv6 { TYPE_IPV6 } else { TYPE_IPV4 }.to_be_bytes());
    }
}

/// A frame of the VM around a whole IP packet.
pub fn framed(packet: &[u8], path: &Path) -> Frame {
    let mut bytes = Vec::with_capacity(packet.len() + 18);
    path.ethernet(false, packet[0] >> 4 == 6, &mut bytes);
    bytes.extend(packet);
    let mut frame = Frame::new(bytes);
    frame.summed = Summed::Unnecessary;
    frame
}

/// Encodes the segment as a frame, to the VM or from it. A corrupt one has a wrong checksum; for
/// others `summed` is its state.
pub fn encode(s: &Seg, path: &Path, to_vm: bool, summed: Summed) -> Frame {
    let mut bytes = Vec::with_capacity(128 + s.data.len());
    let (from, to) = if to_vm { (path.sender, path.vm) } else { (path.vm, path.sender) };
    path.ethernet(to_vm, from.0.is_ipv6(), &mut bytes);
    let options = options(s);
    let len = TCP + options.len() + s.data.len();
    let ecn = if s.ce { CE } else { 0 };
    match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let at = bytes.len();
            bytes.extend([0x45, ecn]);
            bytes.extend(((IPV4 + len) as u16).to_be_bytes());
            bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
            let check = !fold(sum(&bytes[at..]).into());
            bytes[at + 10..at + 12].copy_from_slice(&check.to_ne_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x60, ecn << 4, 0, 0]);
            bytes.extend((len as u16).to_be_bytes());
            bytes.extend([6, 64]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        _ => unreachable!("both ends have addresses of one kind"),
    }
    let tcp = bytes.len();
    bytes.extend(from.1.to_be_bytes());
    bytes.extend(to.1.to_be_bytes());
    bytes.extend(s.seq.to_be_bytes());
    bytes.extend(s.ack.to_be_bytes());
    bytes.extend([(((TCP + options.len()) / 4) << 4) as u8, s.flags]);
    bytes.extend(s.window.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(options);
    bytes.extend(s.data.iter());
    let mut frame = Frame::new(bytes);
    if s.unit != 0 && s.data.len() > usize::from(s.unit) {
        frame.gso_size = s.unit.into();
    }
    let partial = fold(pseudo(&frame.bytes, tcp));
    frame.bytes[tcp + CHECK..tcp + CHECK + 2].copy_from_slice(&partial.to_ne_bytes());
    frame.summed = if s.corrupt { Summed::None } else { summed };
    if frame.summed != Summed::Partial {
        complete_checksum(&mut frame.bytes);
    }
    if s.corrupt {
        frame.bytes[tcp + CHECK] ^= 0x55;
        frame.gso_size = 0;
    }
    if let Summed::Complete(total) = &mut frame.summed {
        *total = sum(&frame.bytes[ETHERNET..]);
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
        bytes.extend([1, 1, 8, 10]);
        bytes.extend(value.to_be_bytes());
        bytes.extend(echo.to_be_bytes());
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
    let (at, ipv6) = ip(bytes)?;
    let tcp = tcp_offset(bytes)?;
    let ip_len = usize::from(u16::from_be_bytes(bytes[at + 2..at + 4].try_into().ok()?));
    if ipv6 {
        let payload = u16::from_be_bytes(bytes[at + 4..at + 6].try_into().ok()?);
        assert_eq!(at + IPV6 + usize::from(payload), bytes.len(), "a wrong length: {bytes:02x?}");
    } else if fold(sum(&bytes[at..at + IPV4]).into()) != 0xffff {
        return None;
    } else {
        assert_eq!(at + ip_len, bytes.len(), "a wrong length: {bytes:02x?}");
    }
    if !is_right(bytes, tcp) {
        return None;
    }
    let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
    let header = usize::from(bytes[tcp + 12] >> 4) * 4;
    let mut s = Seg::bare(u32_at(tcp + 4), u32_at(tcp + 8), bytes[tcp + 13]);
    s.window = u16::from_be_bytes([bytes[tcp + 14], bytes[tcp + 15]]);
    s.data = Rc::from(&bytes[tcp + header..]);
    s.unit = if frame.gso_size == 0 { s.data.len() as u16 } else { frame.gso_size as u16 };
    s.ce = if ipv6 { bytes[at + 1] >> 4 & 3 == CE } else { bytes[at + 1] & 3 == CE };
    let mut rest = &bytes[tcp + TCP..tcp + header];
    while let [kind, after @ ..] = rest {
        if *kind == 0 {
            break;
        }
        if *kind == 1 {
            rest = after;
            continue;
        }
        let len = usize::from(*after.first()?);
        let body = rest.get(2..len)?;
        let word = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().expect("four"));
        match kind {
            2 => {}
            3 => s.scale = body.first().copied(),
            4 => s.sack_permitted = true,
            5 => s.sack = (0..body.len() / 8).map(|i| (word(8 * i), word(8 * i + 4))).collect(),
            8 => s.ts = Some((word(0), word(4))),
            _ => s.foreign = true,
        }
        rest = &rest[len..];
    }
    if s.has(RST) {
        s.ts = None;
    }
    Some(s)
}
