//! Checks of diverted frames, on the way into a link and out of it.
//!
//! A peer is authenticated, but not trusted with the whole host: its frames enter the host's stack
//! as if they came in on an interface. So only unicast IP to configured prefixes of VMs is
//! accepted: the host itself cannot be reached through the link, and no neighbour discovery passes
//! it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

const IPPROTO_ICMPV6: u8 = 58;
/// Router solicitation to redirect (RFC 4861).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
/// Ethernet's header, without a VLAN tag.
const ETHERNET_BYTES: usize = 14;

/// Destination of a frame from the link's tap; `None` for frames that a hook does not divert, such
/// as the host's own.
pub fn parse_destination(frame: &[u8]) -> Option<IpAddr> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
    if ethernet[0] & 1 != 0 {
        return None;
    }
    let (source, destination): (IpAddr, IpAddr) = match (&ethernet[12..], packet.first()? >> 4) {
        ([0x08, 0x00], 4) => {
            let address = |at| packet.get(at..at + 4)?.try_into().ok().map(|a: [u8; 4]| a.into());
            let (source, destination): (Ipv4Addr, Ipv4Addr) = (address(12)?, address(16)?);
            packet.get(..20)?;
            (source.into(), destination.into())
        }
        ([0x86, 0xdd], 6) => {
            let address = |at| packet.get(at..at + 16)?.try_into().ok().map(|a: [u8; 16]| a.into());
            let (source, destination): (Ipv6Addr, Ipv6Addr) = (address(8)?, address(24)?);
            let payload = packet.get(40..)?;
            let is_discovery =
                payload.first().is_none_or(|kind| NEIGHBOUR_DISCOVERY.contains(kind));
            if packet[6] == IPPROTO_ICMPV6 && is_discovery {
                return None;
            }
            (source.into(), destination.into())
        }
        _ => return None,
    };
    (is_routed(source) && is_routed(destination)).then_some(destination)
}

/// May a packet from or to this address be routed? The hook asks the same (link/bpf/divert.bpf.c).
fn is_routed(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            first != 0 && first < 224 && !v4.is_loopback() && !v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            let words = v6.segments();
            words[..4] != [0; 4] && words[0] & 0xffc0 != 0xfe80 && words[0] & 0xff00 != 0xff00
        }
    }
}

/// Addresses diverted frames of peers to the link's tap, by which they enter the host.
#[derive(Clone, Debug)]
pub struct Reentry {
    tap_mac: [u8; 6],
    prefixes: Vec<IpNet>,
}

impl Reentry {
    /// For the link's tap with this MAC address, and the VMs behind these prefixes.
    pub fn new(tap_mac: [u8; 6], prefixes: Vec<IpNet>) -> Self {
        Self { tap_mac, prefixes }
    }

    /// Addresses a frame of a peer to the link's tap; `false`, and nothing done, if it must not
    /// come out.
    pub fn admit_frame(&self, frame: &mut [u8]) -> bool {
        let admitted = parse_destination(frame)
            .is_some_and(|to| self.prefixes.iter().any(|prefix| prefix.contains(&to)));
        if let Some(mac) = frame.first_chunk_mut().filter(|_| admitted) {
            *mac = self.tap_mac;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAP: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn v4(source: &str, destination: &str) -> Vec<u8> {
        let octets = |text: &str| text.parse::<Ipv4Addr>().expect("an address").octets();
        let mut frame = [&[2; 6][..], &[4; 6], &[0x08, 0x00, 0x45, 0, 0, 20]].concat();
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([octets(source), octets(destination)].concat());
        frame
    }

    fn v6(source: &str, destination: &str, next_header: u8, payload: &[u8]) -> Vec<u8> {
        let octets = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
        let mut frame = [&[2; 6][..], &[4; 6], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        frame.extend([0, payload.len() as u8, next_header, 64]);
        frame.extend([octets(source), octets(destination)].concat());
        frame.extend(payload);
        frame
    }

    fn reentry() -> Reentry {
        let prefixes = ["10.1.0.2/32", "fd00:1::/64"];
        Reentry::new(TAP, prefixes.map(|text| text.parse().expect("a prefix")).to_vec())
    }

    #[test]
    fn a_frame_to_a_vm_is_addressed_to_the_tap_and_otherwise_unchanged() {
        for frame in [v4("10.2.0.9", "10.1.0.2"), v6("fd00:2::1", "fd00:1::5", 6, &[1, 2, 3])] {
            let mut admitted = frame.clone();
            assert!(reentry().admit_frame(&mut admitted));
            assert_eq!(admitted[..6], TAP);
            assert_eq!(admitted[6..], frame[6..]);
        }
    }

    #[test]
    fn what_is_not_for_a_vm_of_this_host_does_not_come_out() {
        let mut tagged = v4("10.2.0.9", "10.1.0.2");
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        let mut broadcast = v4("10.2.0.9", "10.1.0.2");
        broadcast[..6].fill(0xff);
        for (what, mut frame) in [
            ("the host beside it", v4("10.2.0.9", "10.1.0.1")),
            ("a loopback source", v4("127.0.0.1", "10.1.0.2")),
            ("a multicast source", v4("224.0.0.1", "10.1.0.2")),
            ("another IPv6 prefix", v6("fd00:2::1", "fd00:3::5", 6, &[])),
            ("a link-local source", v6("fe80::1", "fd00:1::5", 6, &[])),
            ("a neighbour solicitation", v6("fd00:2::1", "fd00:1::5", 58, &[135, 0])),
            ("a message without a type", v6("fd00:2::1", "fd00:1::5", 58, &[])),
            ("a tag", tagged),
            ("a broadcast", broadcast),
        ] {
            let before = frame.clone();
            assert!(!reentry().admit_frame(&mut frame), "{what} comes out");
            assert_eq!(frame, before, "{what} was changed");
        }
        assert!(reentry().admit_frame(&mut v6("fd00:2::1", "fd00:1::5", 58, &[128, 0])), "an echo");
    }

    #[test]
    fn a_frame_cut_anywhere_within_its_headers_goes_nowhere() {
        for (frame, headers) in
            [(v4("10.2.0.9", "10.1.0.2"), 34), (v6("fd00:2::1", "fd00:1::5", 6, &[9]), 54)]
        {
            for end in 0..headers {
                assert_eq!(parse_destination(&frame[..end]), None, "cut at {end}");
            }
            assert!(parse_destination(&frame[..headers]).is_some());
        }
    }
}
