//! Changes that a network may make to a frame on its way.

use crate::checksum::complete_ipv4;
use crate::format::{CE, IPV6_BYTES, Ipv4Header, MACS_BYTES, TAG_BYTES, Tag};
use crate::headers::{Headers, be16};
use crate::packet::{Packet, Pool};

/// Bits of a tag that are the VLAN's number.
const VLAN_ID: u16 = 0x0fff;
/// Next header of IPv6: a fragment header (RFC 8200, 4.5).
const FRAGMENT_HEADER: u8 = 44;

/// Puts a tag before all others; `false`, and nothing done, if there is no room for it.
pub fn push_tag(packet: &mut Packet, tag: Tag) -> bool {
    let inserted = packet.frame().len() > MACS_BYTES && packet.insert(MACS_BYTES, &tag.to_bytes());
    if inserted {
        packet.header.shift(TAG_BYTES as i32);
    }
    inserted
}

/// Takes the outermost tag off; `false`, and nothing done, if it is not `tag`, whatever its
/// priority.
pub fn pop_tag(packet: &mut Packet, tag: Tag) -> bool {
    let word = |at| be16(packet.frame(), at);
    let is_tag = word(MACS_BYTES) == Some(tag.ether_type)
        && word(MACS_BYTES + 2).map(|id| id & VLAN_ID) == Some(tag.id);
    if is_tag {
        packet.remove(MACS_BYTES, TAG_BYTES);
        packet.header.shift(-(TAG_BYTES as i32));
    }
    is_tag
}

/// Marks an ECN-capable packet as having met congestion; `false` if it is not ECN-capable.
pub fn mark_ce(packet: &mut Packet) -> bool {
    let frame = packet.frame_mut();
    let Some(headers) = Headers::parse(frame) else { return false };
    let (ip, l4) = (usize::from(headers.ip), usize::from(headers.l4));
    // Lower bits of the traffic class: of the first two bytes of IPv6 those in the middle.
    let mark = if headers.v6 { CE << 4 } else { CE };
    if frame[ip + 1] & mark == 0 {
        return false;
    }
    frame[ip + 1] |= mark;
    if !headers.v6 {
        complete_ipv4(&mut frame[ip..l4]);
    }
    true
}

/// Cuts an IP packet into fragments of at most `payload_bytes` each, rounded down to a multiple of
/// 8.
///
/// The packet must be no super-packet. One that cannot or need not be cut comes out whole, as does
/// one with IPv6 extension headers. `identification` tells its fragments from those of others.
pub fn fragment(
    mut packet: Packet,
    payload_bytes: usize,
    identification: u32,
    pool: &mut Pool,
    fragments: &mut Vec<Packet>,
) {
    packet.complete_checksum();
    let step = (payload_bytes / 8).max(1) * 8;
    let headers = Headers::parse(packet.frame()).filter(|headers| {
        let bytes = headers.end as usize - usize::from(headers.l4);
        let whole = headers.fragment || packet.header.is_super_packet() || bytes <= step;
        !whole && (!headers.v6 || headers.plain())
    });
    let Some(headers) = headers else {
        fragments.push(packet);
        return;
    };
    let l4 = usize::from(headers.l4);
    let (head, payload) = packet.frame()[..headers.end as usize].split_at(l4);
    for (part, begin) in payload.chunks(step).zip((0..).step_by(step)) {
        let is_last = begin + part.len() == payload.len();
        let mut one = pool.take();
        one.fill(packet.header, head);
        write_headers(
            &mut one,
            &headers,
            Part { begin, bytes: part.len(), is_last },
            identification,
        );
        let end = one.frame().len();
        let inserted = one.insert(end, part);
        debug_assert!(inserted, "a fragment is shorter than the packet");
        fragments.push(one);
    }
    pool.give_back(packet);
}

/// Which bytes of a packet a fragment has.
struct Part {
    begin: usize,
    bytes: usize,
    is_last: bool,
}

/// Makes the headers of the whole, which are all that `packet` has, those of a fragment.
fn write_headers(packet: &mut Packet, whole: &Headers, part: Part, identification: u32) {
    let (ip, l4) = (usize::from(whole.ip), usize::from(whole.l4));
    let head = packet.frame_mut();
    let mut put = |at: usize, value: u16| {
        head[at..at + 2].copy_from_slice(&value.to_be_bytes());
    };
    if whole.v6 {
        let more = u16::from(!part.is_last);
        let [a, b] = (part.begin as u16 | more).to_be_bytes();
        let [c, d, e, f] = identification.to_be_bytes();
        put(ip + 4, 8 + part.bytes as u16);
        let next = std::mem::replace(&mut head[ip + 6], FRAGMENT_HEADER);
        packet.insert(ip + IPV6_BYTES, &[next, 0, a, b, c, d, e, f]);
    } else {
        let more = if part.is_last { 0 } else { Ipv4Header::MORE_FRAGMENTS };
        put(ip + 2, (l4 - ip + part.bytes) as u16);
        put(ip + 4, identification as u16);
        put(ip + 6, (part.begin / 8) as u16 | more);
        complete_ipv4(&mut head[ip..l4]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;
    use crate::testing::SegmentBuilder;

    fn partial(spec: &SegmentBuilder) -> Packet {
        let (header, frame) = spec.partial(None);
        let mut packet = Pool::default().take();
        packet.fill(header, &frame);
        packet
    }

    #[test]
    fn tags_come_off_as_they_went_on_and_the_checksum_stays_found() {
        let mut packet = partial(&SegmentBuilder { payload: 77, ..SegmentBuilder::default() });
        let before = (packet.header, packet.frame().to_vec());
        let tags = [Tag::customer(7), Tag::service(9)];
        for tag in tags {
            assert!(push_tag(&mut packet, tag));
        }
        assert_eq!(Headers::parse(packet.frame()).map(|headers| headers.tags), Some(2));
        assert!(!pop_tag(&mut packet, Tag::customer(9)), "another ether type");
        assert!(!pop_tag(&mut packet, Tag::service(8)), "another id");
        let mut tagged = Pool::default().copy_of(&packet);
        assert!(tagged.complete_checksum());
        assert_eq!(checksum::tcp_is_right(tagged.frame()), Some(true));
        for tag in tags.into_iter().rev() {
            assert!(pop_tag(&mut packet, tag));
        }
        assert_eq!((packet.header, packet.frame().to_vec()), before);
    }

    #[test]
    fn only_ecn_capable_packets_are_marked() {
        for v6 in [false, true] {
            for (traffic_class, marked) in
                [(0, 0), (1, 3), (2, 3), (3, 3), (0xb8, 0xb8), (0xb9, 0xbb)]
            {
                let spec =
                    SegmentBuilder { v6, traffic_class, payload: 5, ..SegmentBuilder::default() };
                let mut packet = Pool::default().take();
                packet.fill(Default::default(), &spec.build());
                assert_eq!(mark_ce(&mut packet), traffic_class & 3 != 0);
                let expected = SegmentBuilder { traffic_class: marked, ..spec }.build();
                assert_eq!(packet.frame(), expected);
                assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
            }
        }
    }

    #[test]
    fn fragments_put_together_are_the_packet() {
        use etherparse::SlicedPacket;
        for v6 in [false, true] {
            let spec = SegmentBuilder { v6, payload: 1000, ..SegmentBuilder::default() };
            let mut fragments = Vec::new();
            fragment(partial(&spec), 403, 5, &mut Pool::default(), &mut fragments);
            assert_eq!(fragments.len(), 3);
            let whole = spec.build();
            let l4 = Headers::parse(&whole).expect("IP").l4.into();
            let mut together = Vec::new();
            for one in &fragments {
                let sliced = SlicedPacket::from_ethernet(one.frame()).expect("well formed");
                assert!(sliced.is_ip_payload_fragmented());
                let headers = Headers::parse(one.frame()).expect("IP");
                assert!(headers.fragment && checksum::ip_is_right(&headers, one.frame()));
                together.extend_from_slice(sliced.ip_payload().expect("IP").payload);
            }
            assert_eq!(together, whole[l4..]);
        }
    }
}
