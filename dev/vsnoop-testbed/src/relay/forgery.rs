//! Datagrams that someone on the way has changed or made up.
//!
//! Their checksums are right, so that no kernel throws them away: what is to be seen is what their
//! receiver makes of them.

use vsnoop_packet::checksum::{complete, complete_ipv4, make_partial};
use vsnoop_packet::format::IPV6_BYTES;
use vsnoop_packet::headers::Headers;
use vsnoop_packet::packet::Packet;
use vsnoop_packet::vnet::VirtioNetHdr;

/// Flipped in the last byte of an address, which makes it another one of the same network.
const ELSEWHERE: u8 = 0x40;
/// Flipped in the first byte of a port.
const OTHER_PORT: u8 = 0x01;

/// Source address of a forged datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Itself,
    Elsewhere,
}

/// Rewrites a UDP datagram; `false`, and no change, for other frames.
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
    let headers = Headers::parse(frame).filter(Headers::udp)?;
    let mut payload = headers.payload_of(frame).to_vec();
    if damaged {
        damage(&mut payload, random)?;
    }
    let (ip, l4) = (usize::from(headers.ip), usize::from(headers.l4));
    let mut frame = [&frame[..headers.payload.into()], &payload].concat();
    if source == Source::Elsewhere {
        frame[ip + if headers.v6 { 23 } else { 15 }] ^= ELSEWHERE;
        frame[l4] ^= OTHER_PORT;
    }
    let end = frame.len();
    let mut put = |at: usize, bytes: usize| {
        frame[at..at + 2].copy_from_slice(&(bytes as u16).to_be_bytes());
    };
    put(l4 + 4, end - l4);
    if headers.v6 {
        put(ip + 4, end - ip - IPV6_BYTES);
    } else {
        put(ip + 2, end - ip);
        complete_ipv4(&mut frame[ip..l4]);
    }
    make_partial(&Headers::parse(&frame)?, &mut frame);
    complete(&mut frame);
    Some(frame)
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
    use vsnoop_packet::checksum::{ip_is_right, transport_is_right};
    use vsnoop_packet::testing::{Datagram, SegmentBuilder};

    use super::*;

    fn udp(frame: &[u8]) -> (Vec<u8>, u16, Vec<u8>) {
        let headers = Headers::parse(frame).filter(Headers::udp).expect("UDP");
        assert!(ip_is_right(&headers, frame) && transport_is_right(&headers, frame));
        assert_eq!(headers.end as usize, frame.len());
        let addresses = headers.addresses(frame);
        let source = addresses[..addresses.len() / 2].to_vec();
        let [port, _] = headers.ports(frame).expect("ports");
        (source, port, headers.payload_of(frame).to_vec())
    }

    #[test]
    fn a_forgery_comes_from_elsewhere_and_no_kernel_would_find_it() {
        let mut random = fastrand::Rng::with_seed(1);
        for v6 in [false, true] {
            let frame =
                Datagram { v6, payload: b"a record".to_vec(), ..Datagram::default() }.build();
            let (source, port, payload) = udp(&frame);
            let mut forge = |from, damaged| {
                udp(&rewritten(&frame, from, damaged, &mut random).expect("a datagram"))
            };
            let replayed = forge(Source::Elsewhere, false);
            assert!(replayed.0 != source && replayed.1 != port && replayed.2 == payload);
            for _ in 0..100 {
                let damaged = forge(Source::Itself, true);
                assert!(damaged.0 == source && damaged.1 == port && damaged.2 != payload);
            }
        }
    }

    #[test]
    fn what_is_no_datagram_stays_as_it_is() {
        let mut random = fastrand::Rng::with_seed(1);
        let frame = SegmentBuilder { payload: 8, ..SegmentBuilder::default() }.build();
        assert_eq!(rewritten(&frame, Source::Elsewhere, true, &mut random), None);
        assert_eq!(rewritten(&frame[..20], Source::Itself, true, &mut random), None);
    }
}
