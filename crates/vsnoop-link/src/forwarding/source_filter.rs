//! The source addresses that a port's VM may use: what libvirt's nwfilter calls `clean-traffic`.
//!
//! | configured | a frame of the VM passes if |
//! |---|---|
//! | MAC addresses | its Ethernet source is one of them, and so is the sender of an ARP packet |
//! | IP addresses | it is IPv4 or ARP from one of them, or from 0.0.0.0 (DHCP, ARP probes) |
//! | | it is IPv6 from one of them, from a link-local address or from `::` (DAD) |
//! | | it is no router advertisement, and announces no neighbour but these; its chain of headers |
//! | | ends within the frame (RFC 7112) |
//! | | it is RARP: QEMU announces a migrated VM with it |
//!
//! Frames of other protocols do not pass a port whose IP addresses are configured.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::mac::Mac;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const IPV6: u16 = 0x86dd;
/// VLAN tags that are looked behind.
const TAGS_LIMIT: usize = 4;

const ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// Why a frame does not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forged {
    Mac,
    Ip,
    /// Not IP, ARP or RARP, or shorter than its headers say.
    Protocol,
}

/// An empty list allows every address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFilter {
    pub macs: Vec<Mac>,
    pub addresses: Vec<IpNet>,
}

impl SourceFilter {
    pub fn is_open(&self) -> bool {
        self.macs.is_empty() && self.addresses.is_empty()
    }

    /// Checks a frame of the VM, of which at least the headers are in `frame`.
    pub fn check(&self, frame: &[u8]) -> Result<(), Forged> {
        if self.is_open() {
            return Ok(());
        }
        let source = frame.get(6..12).and_then(mac_of).ok_or(Forged::Protocol)?;
        self.check_mac(source)?;
        let (kind, packet) = payload(frame).ok_or(Forged::Protocol)?;
        match kind {
            ARP => self.check_arp(packet),
            _ if self.addresses.is_empty() => Ok(()),
            IPV4 => {
                let source: [u8; 4] = chunk(packet, 12).ok_or(Forged::Protocol)?;
                self.check_v4(source.into())
            }
            IPV6 => self.check_v6(packet),
            RARP => Ok(()),
            _ => Err(Forged::Protocol),
        }
    }

    fn check_mac(&self, mac: Mac) -> Result<(), Forged> {
        let allowed = self.macs.is_empty() || self.macs.contains(&mac);
        allowed.then_some(()).ok_or(Forged::Mac)
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.addresses.is_empty() || self.addresses.iter().any(|net| net.contains(&address))
    }

    fn check_v4(&self, source: Ipv4Addr) -> Result<(), Forged> {
        let allowed = source.is_unspecified() || self.allows(source.into());
        allowed.then_some(()).ok_or(Forged::Ip)
    }

    /// RFC 826, for Ethernet and IPv4: sender's hardware and protocol address from byte 8.
    fn check_arp(&self, packet: &[u8]) -> Result<(), Forged> {
        let form: [u8; 6] = chunk(packet, 0).ok_or(Forged::Protocol)?;
        if form != [0, 1, 8, 0, 6, 4] {
            return Err(Forged::Protocol);
        }
        let sender = packet.get(8..14).and_then(mac_of).ok_or(Forged::Protocol)?;
        self.check_mac(sender)?;
        let address: [u8; 4] = chunk(packet, 14).ok_or(Forged::Protocol)?;
        self.check_v4(address.into())
    }

    fn check_v6(&self, packet: &[u8]) -> Result<(), Forged> {
        let source: [u8; 16] = chunk(packet, 8).ok_or(Forged::Protocol)?;
        let source = Ipv6Addr::from(source);
        let is_local = source.is_unspecified() || source.is_unicast_link_local();
        if !is_local && !self.allows(source.into()) {
            return Err(Forged::Ip);
        }
        match icmp_of(packet)? {
            Some([ROUTER_ADVERTISEMENT, ..]) => Err(Forged::Ip),
            Some(icmp @ [NEIGHBOUR_ADVERTISEMENT, ..]) => {
                let target: [u8; 16] = chunk(icmp, 8).ok_or(Forged::Protocol)?;
                let target = Ipv6Addr::from(target);
                let allowed = target.is_unicast_link_local() || self.allows(target.into());
                allowed.then_some(()).ok_or(Forged::Ip)
            }
            _ => Ok(()),
        }
    }
}

/// The ICMPv6 message of an IPv6 packet, also behind extension headers, as RFC 7113 asks of filters
/// for router advertisements. A first fragment that ends before the message would hide it, and so
/// would bytes behind the end of the packet, which receivers cut off.
fn icmp_of(frame: &[u8]) -> Result<Option<&[u8]>, Forged> {
    let bytes = u16::from_be_bytes(chunk(frame, 4).ok_or(Forged::Protocol)?);
    let packet = frame.get(..40 + usize::from(bytes)).ok_or(Forged::Protocol)?;
    let mut next = *packet.get(6).ok_or(Forged::Protocol)?;
    let mut rest = packet.get(40..).ok_or(Forged::Protocol)?;
    // Each extension header has at least 8 bytes, and a frame is bounded.
    loop {
        let bytes = match next {
            // Type, code and checksum.
            ICMPV6 if rest.len() < 4 => return Err(Forged::Protocol),
            ICMPV6 => return Ok(Some(rest)),
            0 | 43 | 60 => (usize::from(*rest.get(1).ok_or(Forged::Protocol)?) + 1) * 8,
            44 => {
                let place = u16::from_be_bytes(chunk(rest, 2).ok_or(Forged::Protocol)?);
                // Only a first or only fragment carries a header.
                if place & 0xfff8 != 0 {
                    return Ok(None);
                }
                8
            }
            _ => return Ok(None),
        };
        next = *rest.first().ok_or(Forged::Protocol)?;
        rest = rest.get(bytes..).ok_or(Forged::Protocol)?;
    }
}

/// EtherType and payload behind VLAN tags.
fn payload(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    for _ in 0..=TAGS_LIMIT {
        let kind = u16::from_be_bytes(chunk(frame, at)?);
        match kind {
            0x8100 | 0x88a8 | 0x9100 => at += 4,
            _ => return Some((kind, &frame[at + 2..])),
        }
    }
    None
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn mac_of(bytes: &[u8]) -> Option<Mac> {
    Some(Mac(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const FORGED: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn filter() -> SourceFilter {
        let nets = ["10.0.0.5/32", "10.1.0.0/16", "fd00::5/128"];
        SourceFilter {
            macs: vec![Mac(OWN)],
            addresses: nets.iter().map(|net| net.parse().expect("a prefix")).collect(),
        }
    }

    fn frame(source: [u8; 6], kind: u16, packet: &[u8]) -> Vec<u8> {
        [&[0xff; 6][..], &source, &kind.to_be_bytes(), packet].concat()
    }

    fn v4(source: [u8; 4]) -> Vec<u8> {
        [&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0][..], &source, &[10, 0, 0, 9]].concat()
    }

    fn arp(mac: [u8; 6], address: [u8; 4]) -> Vec<u8> {
        [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac, &address, &[0; 10]].concat()
    }

    fn v6(source: &str, next: u8, rest: &[u8]) -> Vec<u8> {
        let source: Ipv6Addr = source.parse().expect("an address");
        let head = [0x60, 0, 0, 0, 0, rest.len() as u8, next, 255];
        [&head[..], &source.octets(), &[0xff; 16], rest].concat()
    }

    fn advertisement(kind: u8, target: &str) -> Vec<u8> {
        let target: Ipv6Addr = target.parse().expect("an address");
        [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat()
    }

    #[test]
    fn what_the_vm_may_send_passes() {
        let own = [
            frame(OWN, IPV4, &v4([10, 0, 0, 5])),
            frame(OWN, IPV4, &v4([10, 1, 200, 1])),
            frame(OWN, IPV4, &v4([0; 4])),
            frame(OWN, ARP, &arp(OWN, [10, 0, 0, 5])),
            frame(OWN, ARP, &arp(OWN, [0; 4])),
            frame(OWN, RARP, &[0; 28]),
            frame(OWN, IPV6, &v6("fd00::5", 6, &[])),
            frame(OWN, IPV6, &v6("fe80::1", ICMPV6, &advertisement(136, "fd00::5"))),
            frame(OWN, IPV6, &v6("::", ICMPV6, &advertisement(135, "fd00::5"))),
            frame(OWN, 0x8100, &[&[0, 7, 8, 0][..], &v4([10, 0, 0, 5])].concat()),
        ];
        for (index, frame) in own.iter().enumerate() {
            assert_eq!(filter().check(frame), Ok(()), "frame {index}");
        }
    }

    #[test]
    fn what_it_forges_does_not() {
        let hop = [58, 0, 0, 0, 0, 0, 0, 0];
        let hidden = [&hop[..], &advertisement(134, "::")].concat();
        // A first fragment, of which the next one has the message; a header that is longer than it.
        let first = [&[60, 0, 0, 1, 0, 0, 0, 7][..], &[58, 9, 0, 0, 0, 0, 0, 0]].concat();
        // One whose chain ends where it ends; the same with Ethernet padding, which looks like an
        // echo request.
        let at_end = v6("fe80::1", 44, &[58, 0, 0, 1, 0, 0, 0, 7]);
        let padded = [&at_end[..], &[128, 0, 0, 0, 0, 0]].concat();
        let forged = [
            (frame(OWN, IPV6, &at_end), Forged::Protocol),
            (frame(OWN, IPV6, &padded), Forged::Protocol),
            (frame(FORGED, IPV4, &v4([10, 0, 0, 5])), Forged::Mac),
            (frame(OWN, ARP, &arp(FORGED, [10, 0, 0, 5])), Forged::Mac),
            (frame(OWN, IPV4, &v4([10, 0, 0, 6])), Forged::Ip),
            (frame(OWN, ARP, &arp(OWN, [10, 0, 0, 1])), Forged::Ip),
            (frame(OWN, IPV6, &v6("fd00::6", 6, &[])), Forged::Ip),
            (frame(OWN, IPV6, &v6("fe80::1", ICMPV6, &advertisement(134, "::"))), Forged::Ip),
            (frame(OWN, IPV6, &v6("fe80::1", 0, &hidden)), Forged::Ip),
            (frame(OWN, IPV6, &v6("fe80::1", 44, &first)), Forged::Protocol),
            (frame(OWN, IPV6, &v6("fe80::1", ICMPV6, &advertisement(136, "fd00::6"))), Forged::Ip),
            (frame(OWN, 0x88cc, &[0; 40]), Forged::Protocol),
            (frame(OWN, IPV4, &[0x45]), Forged::Protocol),
            (frame(OWN, 0x8100, &[&[0, 7, 8, 0][..], &v4([10, 0, 0, 6])].concat()), Forged::Ip),
        ];
        for (index, (frame, why)) in forged.iter().enumerate() {
            assert_eq!(filter().check(frame), Err(*why), "frame {index}");
        }
    }

    #[test]
    fn each_list_counts_alone() {
        let macs = SourceFilter { addresses: vec![], ..filter() };
        assert_eq!(macs.check(&frame(OWN, IPV4, &v4([1, 2, 3, 4]))), Ok(()));
        assert_eq!(macs.check(&frame(OWN, 0x88cc, &[])), Ok(()));
        assert_eq!(macs.check(&frame(FORGED, IPV4, &v4([1, 2, 3, 4]))), Err(Forged::Mac));
        let addresses = SourceFilter { macs: vec![], ..filter() };
        assert_eq!(addresses.check(&frame(FORGED, IPV4, &v4([10, 0, 0, 5]))), Ok(()));
        assert!(SourceFilter::default().check(&[]).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = filter().check(&bytes);
            let mut own = bytes;
            if own.len() >= 14 {
                own[6..12].copy_from_slice(&OWN);
                own[12..14].copy_from_slice(&IPV6.to_be_bytes());
                let _ = filter().check(&own);
            }
        }
    }
}
