//! Offsets of the headers in a frame, and checksums.

pub const ETHERNET: usize = 14;
pub const IPV4: usize = 20;
pub const IPV6: usize = 40;
pub const TCP: usize = 20;
pub const TYPE_IPV4: u16 = 0x0800;
pub const TYPE_IPV6: u16 = 0x86dd;
pub const CHECK: usize = 16;

/// One's complement sum of big-endian words, as skb->csum has it: not folded, in the order of the
/// bytes.
pub fn sum(bytes: &[u8]) -> u32 {
    let mut total = 0u64;
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        total += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    let total = (total & 0xffff_ffff) + (total >> 32);
    ((total & 0xffff_ffff) + (total >> 32)) as u32
}

pub fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The protocol in the Ethernet header.
pub fn ether_type(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(12..14)?.try_into().ok()?))
}

fn is_tag(protocol: u16) -> bool {
    matches!(protocol, 0x8100 | 0x88a8)
}

/// Offset of the IP header, and whether it is IPv6.
pub fn ip(bytes: &[u8]) -> Option<(usize, bool)> {
    let mut at = 12;
    while is_tag(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)) {
        at += 4;
    }
    match u16::from_be_bytes(bytes[at..at + 2].try_into().ok()?) {
        TYPE_IPV4 => Some((at + 2, false)),
        TYPE_IPV6 => Some((at + 2, true)),
        _ => None,
    }
}

pub fn is_ipv6(bytes: &[u8]) -> bool {
    ip(bytes).is_some_and(|(_, ipv6)| ipv6)
}

/// The IP packet in a frame.
pub fn packet(bytes: &[u8]) -> Option<&[u8]> {
    ip(bytes).map(|(at, _)| &bytes[at..])
}

/// Offset of the TCP header; `None` if it is not TCP.
pub fn tcp_offset(bytes: &[u8]) -> Option<usize> {
    let (at, ipv6) = ip(bytes)?;
    let (protocol, len) =
        if ipv6 { (*bytes.get(at + 6)?, IPV6) } else { (*bytes.get(at + 9)?, IPV4) };
    (protocol == 6 && bytes.len() >= at + len + TCP).then_some(at + len)
}

/// Payload of a TCP segment, bytes.
pub fn tcp_payload(bytes: &[u8]) -> Option<u32> {
    let at = tcp_offset(bytes)?;
    let header = usize::from(bytes[at + 12] >> 4) * 4;
    (bytes.len() - at).checked_sub(header).map(|len| len as u32)
}

/// Sum of the pseudo-header.
pub fn pseudo(bytes: &[u8], tcp: usize) -> u64 {
    let (at, ipv6) = ip(bytes).expect("IP");
    let addresses = if ipv6 { &bytes[at + 8..at + 40] } else { &bytes[at + 12..at + 20] };
    let len = ((bytes.len() - tcp) as u32).to_be_bytes();
    u64::from(sum(addresses)) + u64::from(sum(&len)) + u64::from(sum(&[0, 6]))
}

/// Completes a CHECKSUM_PARTIAL. The field must have the pseudo-header's sum.
pub fn complete_checksum(bytes: &mut [u8]) {
    let Some(tcp) = tcp_offset(bytes) else { return };
    let field = u16::from_ne_bytes([bytes[tcp + CHECK], bytes[tcp + CHECK + 1]]);
    let expected = fold(pseudo(bytes, tcp));
    assert_eq!(field, expected, "the sum of the pseudo-header is wrong: {bytes:02x?}");
    let check = !fold(u64::from(sum(&bytes[tcp..])));
    bytes[tcp + CHECK..tcp + CHECK + 2].copy_from_slice(&check.to_ne_bytes());
}

/// Is the TCP checksum right?
pub fn is_right(bytes: &[u8], tcp: usize) -> bool {
    fold(pseudo(bytes, tcp) + u64::from(sum(&bytes[tcp..]))) == 0xffff
}

/// The ports of a frame: of its source and its destination.
pub fn ports(bytes: &[u8]) -> Option<(u16, u16)> {
    let tcp = tcp_offset(bytes)?;
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Some((port(tcp), port(tcp + 2)))
}
