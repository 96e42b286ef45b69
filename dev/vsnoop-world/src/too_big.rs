//! Reports that a packet is too big for the path behind the VM: ICMP "fragmentation needed" (RFC
//! 1191), about untagged frames.

use vsnoop_packet::checksum;
use vsnoop_packet::headers::Headers;

use crate::frame::{Frame, Summed};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const ICMP: usize = 8;
/// A report quotes ports and SEQ of the TCP header.
const QUOTED: usize = IPV4 + 8;
const ICMP_CHECKSUM: u16 = 2;
/// Type and code of "fragmentation needed".
const NEEDED: [u8; 2] = [3, 4];

/// The router's report, if the frame is longer than the MTU.
pub fn report(frame: &Frame, mtu: u16) -> Option<Frame> {
    let bytes = &frame.bytes;
    let headers = Headers::parse(bytes).filter(|headers| !headers.v6 && headers.tags == 0)?;
    if headers.end as usize - ETHERNET <= usize::from(mtu) {
        return None;
    }
    let quoted = &bytes[ETHERNET..ETHERNET + QUOTED];
    let length = (IPV4 + ICMP + QUOTED) as u16;
    let mut out = [&bytes[6..12], &bytes[..6], &bytes[12..14]].concat();
    out.extend([0x45, 0]);
    out.extend(length.to_be_bytes());
    out.extend([0, 0, 0, 0, 64, 1, 0, 0]);
    out.extend([&quoted[16..20], &quoted[12..16]].concat());
    checksum::complete_ipv4(&mut out[ETHERNET..]);
    let icmp = out.len();
    out.extend([NEEDED[0], NEEDED[1], 0, 0, 0, 0]);
    out.extend(mtu.to_be_bytes());
    out.extend(quoted);
    let end = out.len();
    checksum::complete_at(&mut out, icmp, end, ICMP_CHECKSUM);
    let mut report = Frame::new(out);
    report.summed = Summed::Unnecessary;
    Some(report)
}

/// The fields of a report.
#[derive(Clone, Copy, Debug)]
pub struct TooBig {
    pub sender_port: u16,
    pub vm_port: u16,
    pub seq: u32,
    pub mtu: u16,
}

/// Reads a report.
pub fn read(frame: &Frame) -> Option<TooBig> {
    let bytes = &frame.bytes;
    let headers = Headers::parse(bytes).filter(|headers| !headers.v6 && headers.protocol == 1)?;
    let icmp = bytes.get(usize::from(headers.l4)..)?;
    let tcp = icmp.get(ICMP + IPV4..ICMP + QUOTED)?;
    let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    (icmp[..2] == NEEDED).then(|| TooBig {
        sender_port: half(0),
        vm_port: half(2),
        seq: u32::from(half(4)) << 16 | u32::from(half(6)),
        mtu: u16::from_be_bytes([icmp[6], icmp[7]]),
    })
}
