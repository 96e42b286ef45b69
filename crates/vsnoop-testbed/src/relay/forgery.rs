//! Datagrams that someone on the way has changed or made up.
//!
//! Their checksums are right, so that no kernel throws them away: what is to be seen is what their
//! receiver makes of them.

use etherparse::{NetSlice, SlicedPacket, TransportSlice, UdpHeader};
use vsnoop_frame::packet::Packet;
use vsnoop_frame::vnet::VirtioNetHdr;

/// Flipped in the last byte of an address, which makes it another one of the same network.
const ELSEWHERE: u8 = 0x40;
/// Flipped in a port.
const OTHER_PORT: u16 = 0x0100;

/// Where a datagram is said to come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Itself,
    Elsewhere,
}

/// Writes a UDP datagram anew; `false`, and nothing done, if the frame is none.
pub(super) fn rewrite(
    packet: &mut Packet,
    source: Source,
    damaged: bool,
    random: &mut fastrand::Rng,
) -> bool {
    let Some(frame) = rewritten(packet.frame(), source, damaged, random) else { return false };
    packet.fill(VirtioNetHdr::default(), &frame);
    true
}

fn rewritten(
    frame: &[u8],
    source: Source,
    damaged: bool,
    random: &mut fastrand::Rng,
) -> Option<Vec<u8>> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(TransportSlice::Udp(udp)) = sliced.transport else { return None };
    let mut payload = udp.payload().to_vec();
    if damaged {
        damage(&mut payload, random)?;
    }
    let elsewhere = source == Source::Elsewhere;
    let port = udp.source_port() ^ if elsewhere { OTHER_PORT } else { 0 };
    let flip = if elsewhere { ELSEWHERE } else { 0 };
    let to = udp.destination_port();
    let length = UdpHeader::LEN + payload.len();
    let (headers, udp, ip) = match sliced.net? {
        NetSlice::Ipv4(slice) => {
            let mut ip = slice.header().to_header();
            ip.source[3] ^= flip;
            ip.set_payload_len(length).ok()?;
            ip.header_checksum = ip.calc_header_checksum();
            let udp = UdpHeader::with_ipv4_checksum(port, to, &ip, &payload).ok()?;
            (ip.to_bytes().to_vec(), udp, slice.header().slice().as_ptr())
        }
        NetSlice::Ipv6(slice) => {
            let mut ip = slice.header().to_header();
            ip.source[15] ^= flip;
            ip.set_payload_length(length).ok()?;
            let udp = UdpHeader::with_ipv6_checksum(port, to, &ip, &payload).ok()?;
            (ip.to_bytes().to_vec(), udp, slice.header().slice().as_ptr())
        }
        NetSlice::Arp(_) => return None,
    };
    let before = &frame[..ip.addr() - frame.as_ptr().addr()];
    Some([before, &headers, &udp.to_bytes(), &payload].concat())
}

/// Cuts a payload short, or flips one bit of it. `None`: there is nothing to damage.
fn damage(payload: &mut Vec<u8>, random: &mut fastrand::Rng) -> Option<()> {
    if payload.is_empty() {
        return None;
    }
    let at = random.usize(..payload.len());
    if random.bool() {
        payload.truncate(at);
    } else {
        payload[at] ^= 1 << random.u8(..8);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn datagram(v6: bool) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2; 6], [3; 6]);
        let builder = if v6 {
            ethernet.ipv6([0xfd; 16], [0xfc; 16], 64)
        } else {
            ethernet.ipv4([10, 77, 0, 1], [10, 77, 0, 2], 64)
        };
        let mut frame = Vec::new();
        builder.udp(7946, 7947).write(&mut frame, b"a record").expect("room");
        frame
    }

    fn udp(frame: &[u8]) -> (Vec<u8>, u16, Vec<u8>) {
        let sliced = SlicedPacket::from_ethernet(frame).expect("well-formed");
        let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
        let header = udp.to_header();
        let (source, right) = match sliced.net.expect("IP") {
            NetSlice::Ipv4(ip) => {
                let ip = ip.header().to_header();
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                (ip.source.to_vec(), header.calc_checksum_ipv4(&ip, udp.payload()))
            }
            NetSlice::Ipv6(ip) => {
                let ip = ip.header().to_header();
                (ip.source.to_vec(), header.calc_checksum_ipv6(&ip, udp.payload()))
            }
            NetSlice::Arp(_) => panic!("ARP"),
        };
        assert_eq!(Ok(header.checksum), right.map_err(drop));
        (source, header.source_port, udp.payload().to_vec())
    }

    #[test]
    fn a_forgery_comes_from_elsewhere_and_no_kernel_would_find_it() {
        let mut random = fastrand::Rng::with_seed(1);
        for v6 in [false, true] {
            let frame = datagram(v6);
            let (source, port, payload) = udp(&frame);
            let mut of = |from, damaged| {
                udp(&rewritten(&frame, from, damaged, &mut random).expect("a datagram"))
            };
            let replayed = of(Source::Elsewhere, false);
            assert!(replayed.0 != source && replayed.1 != port && replayed.2 == payload);
            for _ in 0..100 {
                let damaged = of(Source::Itself, true);
                assert!(damaged.0 == source && damaged.1 == port && damaged.2 != payload);
            }
        }
    }

    #[test]
    fn what_is_no_datagram_stays_as_it_is() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [3; 6]);
        let builder = builder.ipv4([10, 77, 0, 1], [10, 77, 0, 2], 64).tcp(1, 2, 3, 4);
        builder.write(&mut frame, b"a record").expect("room");
        assert_eq!(rewritten(&frame, Source::Elsewhere, true, &mut random), None);
        assert_eq!(rewritten(&frame[..20], Source::Itself, true, &mut random), None);
    }
}
