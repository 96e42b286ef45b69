//! Changes that a network may make to a frame on its way.

use etherparse::{
    IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, SingleVlanHeader,
    SlicedPacket,
};

use crate::checksum;
use crate::layout::{Layout, Version};
use crate::packet::{Packet, Pool};

/// Where the ether type of the outermost header stands, behind the two MAC addresses.
const ETHER_TYPE: usize = 12;
const TAG_BYTES: usize = 4;

/// A VLAN tag: the ether type that announces it, and its 12-bit id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub ether_type: u16,
    pub id: u16,
}

impl Tag {
    /// An 802.1Q tag.
    pub const fn customer(id: u16) -> Self {
        Self { ether_type: 0x8100, id }
    }

    /// An 802.1ad tag, the outer one of QinQ.
    pub const fn service(id: u16) -> Self {
        Self { ether_type: 0x88a8, id }
    }
}

/// Puts a tag before all others; `false`, and nothing done, if there is no room for it.
pub fn push_tag(packet: &mut Packet, tag: Tag) -> bool {
    let [type_high, type_low] = tag.ether_type.to_be_bytes();
    let [id_high, id_low] = (tag.id & 0x0fff).to_be_bytes();
    let inserted = packet.frame().len() > ETHER_TYPE
        && packet.insert(ETHER_TYPE, &[type_high, type_low, id_high, id_low]);
    if inserted {
        packet.header.shift(TAG_BYTES as i32);
    }
    inserted
}

/// Takes the outermost tag off; `false`, and nothing done, if it is not `tag`.
pub fn pop_tag(packet: &mut Packet, tag: Tag) -> bool {
    let frame = packet.frame();
    if frame.get(ETHER_TYPE..ETHER_TYPE + 2) != Some(&tag.ether_type.to_be_bytes()) {
        return false;
    }
    match SingleVlanHeader::from_slice(&frame[ETHER_TYPE + 2..]) {
        Ok((header, _)) if header.vlan_id.value() == tag.id => {}
        _ => return false,
    }
    packet.remove(ETHER_TYPE, TAG_BYTES);
    packet.header.shift(-(TAG_BYTES as i32));
    true
}

/// Marks an ECN-capable packet as having met congestion; `false` if it is not ECN-capable.
pub fn mark_ce(packet: &mut Packet) -> bool {
    let frame = packet.frame_mut();
    let Some(layout) = Layout::of(frame) else { return false };
    match layout.version {
        Version::V4 => {
            let Ok((mut header, _)) = Ipv4Header::from_slice(&frame[layout.ip..]) else {
                return false;
            };
            if header.ecn == IpEcn::ZERO {
                return false;
            }
            header.ecn = IpEcn::THREE;
            header.header_checksum = header.calc_header_checksum();
            put(frame, layout.ip, &header.to_bytes());
        }
        Version::V6 => {
            let Ok((mut header, _)) = Ipv6Header::from_slice(&frame[layout.ip..]) else {
                return false;
            };
            if header.ecn() == IpEcn::ZERO {
                return false;
            }
            header.set_ecn(IpEcn::THREE);
            put(frame, layout.ip, &header.to_bytes());
        }
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
    checksum::complete(&mut packet);
    let step = (payload_bytes / 8).max(1) * 8;
    let headers = Layout::of(packet.frame()).and_then(|layout| {
        let whole = layout.fragment
            || packet.header.is_super_packet()
            || layout.ip_end - layout.ip_payload <= step;
        if whole { None } else { Headers::of(packet.frame(), layout, identification) }
    });
    let Some(headers) = headers else {
        fragments.push(packet);
        return;
    };
    let layout = headers.layout();
    let payload = &packet.frame()[layout.ip_payload..layout.ip_end];
    let count = payload.len().div_ceil(step);
    for (index, part) in payload.chunks(step).enumerate() {
        let mut one = pool.take();
        one.header = packet.header;
        one.fill(packet.header, &packet.frame()[..layout.ip]);
        let at = layout.ip;
        let inserted = headers.write(&mut one, at, part, index * step, index + 1 < count);
        debug_assert!(inserted, "a fragment is shorter than the packet");
        fragments.push(one);
    }
    pool.give_back(packet);
}

/// The IP header that fragments start from.
enum Headers {
    V4(Layout, Ipv4Header),
    V6(Layout, Ipv6Header, u32),
}

impl Headers {
    fn of(frame: &[u8], layout: Layout, identification: u32) -> Option<Self> {
        match layout.version {
            Version::V4 => {
                let mut header = Ipv4Header::from_slice(&frame[layout.ip..]).ok()?.0;
                header.dont_fragment = false;
                header.identification = identification as u16;
                Some(Self::V4(layout, header))
            }
            Version::V6 => {
                let header = Ipv6Header::from_slice(&frame[layout.ip..]).ok()?.0;
                let plain = layout.ip_payload == layout.ip + Ipv6Header::LEN;
                plain.then_some(Self::V6(layout, header, identification))
            }
        }
    }

    fn layout(&self) -> Layout {
        match self {
            Self::V4(layout, _) | Self::V6(layout, ..) => *layout,
        }
    }

    fn write(
        &self,
        packet: &mut Packet,
        at: usize,
        part: &[u8],
        offset: usize,
        more: bool,
    ) -> bool {
        let Ok(fragment_offset) = IpFragOffset::try_new((offset / 8) as u16) else { return false };
        let inserted = match self {
            Self::V4(_, header) => {
                let mut header = header.clone();
                header.total_len = (header.header_len() + part.len()) as u16;
                header.fragment_offset = fragment_offset;
                header.more_fragments = more;
                header.header_checksum = header.calc_header_checksum();
                packet.insert(at, &header.to_bytes())
            }
            Self::V6(_, header, identification) => {
                let mut header = header.clone();
                let extension = Ipv6FragmentHeader {
                    next_header: header.next_header,
                    fragment_offset,
                    more_fragments: more,
                    identification: *identification,
                }
                .to_bytes();
                header.next_header = IpNumber::IPV6_FRAGMENTATION_HEADER;
                header.payload_length = (extension.len() + part.len()) as u16;
                packet.insert(at, &header.to_bytes()) && {
                    let end = packet.frame().len();
                    packet.insert(end, &extension)
                }
            }
        };
        let end = packet.frame().len();
        inserted && packet.insert(end, part)
    }
}

/// The IP header as it is, for who asks whether a packet is ECN-capable or marked.
pub fn ecn(frame: &[u8]) -> Option<IpEcn> {
    use etherparse::NetSlice;
    match SlicedPacket::from_ethernet(frame).ok()?.net? {
        NetSlice::Ipv4(ip) => Some(ip.header().ecn()),
        NetSlice::Ipv6(ip) => Some(ip.header().ecn()),
        NetSlice::Arp(_) => None,
    }
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TcpFrame, V4, V6};

    #[test]
    fn tags_come_off_as_they_went_on_and_the_checksum_stays_found() {
        let mut packet = Pool::default().take();
        TcpFrame { payload: 77, ..TcpFrame::default() }.build_partial(&mut packet);
        let before = (packet.header, packet.frame().to_vec());
        let tags = [Tag::customer(7), Tag::service(9)];
        for tag in tags {
            assert!(push_tag(&mut packet, tag));
        }
        assert_eq!(Layout::of(packet.frame()).map(|layout| layout.tags), Some(2));
        assert!(!pop_tag(&mut packet, Tag::customer(9)), "another ether type");
        assert!(!pop_tag(&mut packet, Tag::service(8)), "another id");
        let mut tagged = Pool::default().copy_of(&packet);
        assert!(checksum::complete(&mut tagged));
        assert_eq!(checksum::tcp_is_right(tagged.frame()), Some(true));
        for tag in tags.into_iter().rev() {
            assert!(pop_tag(&mut packet, tag));
        }
        assert_eq!((packet.header, packet.frame().to_vec()), before);
    }

    #[test]
    fn only_ecn_capable_packets_are_marked() {
        for addresses in [V4, V6] {
            for (ect, marked) in [(false, false), (true, true)] {
                let mut packet = Pool::default().take();
                let frame = TcpFrame { addresses, ect, payload: 5, ..TcpFrame::default() }.build();
                packet.fill(Default::default(), &frame);
                assert_eq!(mark_ce(&mut packet), marked);
                let expected = if marked { IpEcn::THREE } else { IpEcn::ZERO };
                assert_eq!(ecn(packet.frame()), Some(expected));
                assert_eq!(checksum::tcp_is_right(packet.frame()), Some(true));
            }
        }
    }

    #[test]
    fn fragments_put_together_are_the_packet() {
        use etherparse::SlicedPacket;
        for addresses in [V4, V6] {
            let spec = TcpFrame { addresses, payload: 1000, ..TcpFrame::default() };
            let mut pool = Pool::default();
            let mut packet = pool.take();
            spec.build_partial(&mut packet);
            let mut fragments = Vec::new();
            fragment(packet, 403, 5, &mut pool, &mut fragments);
            assert_eq!(fragments.len(), 3);
            let whole = spec.build();
            let payload = &whole[Layout::of(&whole).expect("a layout").ip_payload..];
            let mut together = Vec::new();
            for one in &fragments {
                let sliced = SlicedPacket::from_ethernet(one.frame()).expect("well formed");
                assert!(sliced.is_ip_payload_fragmented());
                together.extend_from_slice(sliced.ip_payload().expect("IP").payload);
            }
            assert_eq!(together, payload);
        }
    }
}
