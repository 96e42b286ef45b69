//! Frames of ns-3 as the host takes them.

use vsnoop_packet::checksum;
use vsnoop_packet::headers::Headers;
use vsnoop_world::frame::{Frame, Summed};
use vsnoop_world::layout::tcp_offset;

const ETHERNET_BYTES: usize = 14;
/// A header of IPv4 without options, and where its length and its checksum are.
const IPV4_BYTES: usize = 20;
const IPV4_LENGTH: usize = ETHERNET_BYTES + 2;
const IPV4_CHECKSUM: usize = ETHERNET_BYTES + 10;
/// A header of TCP without options, and where its length and its flags are.
const TCP_BYTES: usize = 20;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const SYN: u8 = 2;
/// The MSS that ends in ns-3 have, and do not tell: 1460.
const MSS_OPTION: [u8; 4] = [2, 4, 0x05, 0xb4];

/// A frame whose checksums a device has verified. ns-3 computes none, but the programs check that
/// of the IPv4 header.
pub fn verified_frame(bytes: &[u8]) -> Frame {
    let mut bytes = bytes.to_vec();
    sum_ipv4_header(&mut bytes);
    verified(bytes)
}

/// The same for hosts with sockets, which check the segment, too, and learn the MSS from a SYN.
pub fn frame_for_sockets(bytes: &[u8]) -> Frame {
    let mut bytes = bytes.to_vec();
    if let Some(tcp) = tcp_offset(&bytes).filter(|tcp| bytes[tcp + FLAGS] & SYN != 0) {
        bytes.splice(tcp + TCP_BYTES..tcp + TCP_BYTES, MSS_OPTION);
        bytes[tcp + DATA_OFFSET] += (MSS_OPTION.len() as u8 / 4) << 4;
        let length = (bytes.len() - ETHERNET_BYTES) as u16;
        bytes[IPV4_LENGTH..IPV4_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
    }
    sum_ipv4_header(&mut bytes);
    if let Some(headers) = Headers::parse(&bytes).filter(Headers::tcp) {
        checksum::make_partial(&headers, &mut bytes);
        checksum::complete(&mut bytes);
    }
    verified(bytes)
}

fn verified(bytes: Vec<u8>) -> Frame {
    let mut frame = Frame::new(bytes);
    frame.summed = Summed::Unnecessary;
    frame
}

fn sum_ipv4_header(bytes: &mut [u8]) {
    if let Some(header) = bytes.get_mut(ETHERNET_BYTES..ETHERNET_BYTES + IPV4_BYTES) {
        let at = IPV4_CHECKSUM - ETHERNET_BYTES;
        header[at..at + 2].fill(0);
        let sum = !checksum::sum(header);
        header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}
