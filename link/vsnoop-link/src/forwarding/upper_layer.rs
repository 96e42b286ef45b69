//! The payload of an IP packet, behind options, extension headers and a fragment header.

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// The bytes behind the headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Upper<'a> {
    pub protocol: u8,
    /// From the header of the protocol on; `None` of a fragment that is not the first.
    pub message: Option<&'a [u8]>,
    pub is_fragment: bool,
}

/// The payload of IPv4; `None` if its header is not whole. Bytes behind the packet's end, which
/// receivers cut off, do not count.
pub(super) fn upper_of_v4(packet: &[u8]) -> Option<Upper<'_>> {
    let header = packet.first_chunk::<20>()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    // Of a super-packet the length may be 0, or more than there is in the first part of the frame.
    let end = if length == 0 { packet.len() } else { length.min(packet.len()) };
    let message = packet.get(header_bytes.max(20)..end)?;
    let place = u16::from_be_bytes([header[6], header[7]]);
    let is_first = place & 0x1fff == 0;
    Some(Upper {
        protocol: header[9],
        message: is_first.then_some(message),
        is_fragment: place & 0x3fff != 0,
    })
}

/// The payload of IPv6; `None` if its headers are not whole. A first fragment that ends before the
/// message would hide it, and so would bytes behind the end of the packet.
pub(super) fn upper_of_v6(packet: &[u8]) -> Option<Upper<'_>> {
    let header = packet.first_chunk::<40>()?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = if length == 0 { packet.len() } else { (40 + length).min(packet.len()) };
    let (mut next, mut is_fragment) = (header[6], false);
    let mut rest = packet.get(40..end)?;
    // Each extension header has at least 8 bytes, and a frame is bounded.
    loop {
        let bytes = match next {
            HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(*rest.get(1)?) + 1) * 8,
            FRAGMENT => {
                let place = u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]);
                is_fragment = true;
                // Only a first or only fragment carries a header.
                if place & 0xfff8 != 0 {
                    return Some(Upper { protocol: *rest.first()?, message: None, is_fragment });
                }
                8
            }
            _ => return Some(Upper { protocol: next, message: Some(rest), is_fragment }),
        };
        next = *rest.first()?;
        rest = rest.get(bytes..)?;
    }
}
