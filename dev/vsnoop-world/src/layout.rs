//! The connection of a frame, and its bytes as the kernel sums them.

use vsnoop_packet::checksum;
use vsnoop_packet::headers::Headers;

/// The headers of a frame whose IP packet may be longer or shorter than it says.
pub fn headers(bytes: &[u8]) -> Option<Headers> {
    Headers::of_start(bytes)
}

/// One's complement sum, as skb->csum has it: in the order of the bytes.
pub fn sum(bytes: &[u8]) -> u32 {
    checksum::sum(bytes).to_be().into()
}

/// The protocol in the Ethernet header.
pub fn ether_type(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(12..14)?.try_into().ok()?))
}

/// The IP packet in a frame.
pub fn packet(bytes: &[u8]) -> Option<&[u8]> {
    headers(bytes).map(|headers| &bytes[headers.ip.into()..])
}

/// Offset of the TCP header; `None` if it is not TCP.
pub fn tcp_offset(bytes: &[u8]) -> Option<usize> {
    headers(bytes).filter(Headers::tcp).map(|headers| headers.l4.into())
}

/// The ports of a frame: of its source and its destination.
pub fn ports(bytes: &[u8]) -> Option<(u16, u16)> {
    let [from, to] = headers(bytes)?.ports(bytes)?;
    Some((from, to))
}
