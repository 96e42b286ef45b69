//! The source addresses that a port's VM may use, and what only routers and servers send.
//!
//! | configured | a frame of the VM passes if |
//! |---|---|
//! | MAC addresses | its Ethernet source is one of them, and so is the sender of ARP and RARP, |
//! | | and the link-layer address that it gives for itself in neighbour discovery |
//! | IP addresses | it is IPv4 or ARP from one of them, IPv6 from one of them or a link-local one |
//! | | it is from 0.0.0.0, and asks for an address (DHCP), or probes for its own (RFC 5227) |
//! | | it is from `::`, and DAD, a router solicitation or an MLD report (RFC 4862, RFC 3590) |
//! | | it announces no neighbour but these, and is no message of a router or, unless the port |
//! | | may, of a DHCP server; its chain of headers ends within the frame (RFC 7112) |
//! | | it is RARP: QEMU announces a migrated VM with it |
//!
//! A link-local address is one of those that are configured or, where MAC addresses are, that of
//! one of them (EUI-64). Frames of other protocols do not pass a port whose IP addresses are
//! configured.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::mac::Mac;
use super::neighbour_discovery::{self, Discovery};
use super::upper_layer::{Upper, upper_of_v4, upper_of_v6};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const IPV6: u16 = 0x86dd;
/// VLAN tags that are looked behind.
const TAGS_LIMIT: usize = 4;

const ICMP: u8 = 1;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Types of ICMP that only routers send: redirect, router advertisement (RFC 1256).
const ICMP_OF_ROUTERS: [u8; 2] = [5, 9];
/// ICMPv6 messages: router advertisement, redirect, router renumbering.
const ICMPV6_OF_ROUTERS: [u8; 3] = [134, 137, 138];
/// MLD reports and done.
const MLD: [u8; 3] = [131, 132, 143];

const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;
const DHCPV6_SERVER: u16 = 547;

/// Why a frame does not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forged {
    Mac,
    Ip,
    /// Not IP, ARP or RARP, or shorter than its headers say.
    Protocol,
    /// A message of a router or of a DHCP server.
    Service,
}

/// An empty list allows every address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFilter {
    pub macs: Vec<Mac>,
    pub addresses: Vec<IpNet>,
    /// The VM may answer as a DHCP server.
    pub is_dhcp_server: bool,
}

impl SourceFilter {
    pub fn is_open(&self) -> bool {
        self.macs.is_empty() && self.addresses.is_empty()
    }

    /// Checks a frame of the VM, of which at least the headers are in `frame`.
    pub fn check_source(&self, frame: &[u8]) -> Result<(), Forged> {
        if self.is_open() {
            return Ok(());
        }
        let source = frame.get(6..12).and_then(mac_of).ok_or(Forged::Protocol)?;
        self.check_mac(source)?;
        let (kind, packet) = parse_payload(frame).ok_or(Forged::Protocol)?;
        match kind {
            ARP | RARP => self.check_arp(kind, packet),
            _ if self.addresses.is_empty() => Ok(()),
            IPV4 => self.check_v4(packet),
            IPV6 => self.check_v6(packet),
            _ => Err(Forged::Protocol),
        }
    }

    fn check_mac(&self, mac: Mac) -> Result<(), Forged> {
        let allowed = self.macs.is_empty() || self.macs.contains(&mac);
        allowed.then_some(()).ok_or(Forged::Mac)
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        self.addresses.is_empty() || self.addresses.iter().any(|net| net.contains(&address))
    }

    fn allows_v6(&self, address: Ipv6Addr) -> bool {
        let is_own = || self.macs.is_empty() || self.macs.iter().any(|mac| eui_64(*mac) == address);
        self.allows_address(address.into()) || address.is_unicast_link_local() && is_own()
    }

    /// RFC 826 and RFC 903, for Ethernet and IPv4: operation in byte 6, sender's hardware and
    /// protocol address from byte 8, target's protocol address from byte 24.
    fn check_arp(&self, kind: u16, packet: &[u8]) -> Result<(), Forged> {
        let form: [u8; 6] = chunk_at(packet, 0).ok_or(Forged::Protocol)?;
        if form != [0, 1, 8, 0, 6, 4] {
            return Err(Forged::Protocol);
        }
        let operation: [u8; 2] = chunk_at(packet, 6).ok_or(Forged::Protocol)?;
        let is_request = operation == [0, if kind == ARP { 1 } else { 3 }];
        // A RARP server's answers are a service.
        if !is_request && (kind, operation) != (ARP, [0, 2]) {
            return Err(Forged::Protocol);
        }
        let sender = packet.get(8..14).and_then(mac_of).ok_or(Forged::Protocol)?;
        self.check_mac(sender)?;
        let address: [u8; 4] = chunk_at(packet, 14).ok_or(Forged::Protocol)?;
        let target: [u8; 4] = chunk_at(packet, 24).ok_or(Forged::Protocol)?;
        let (address, target) = (Ipv4Addr::from(address), Ipv4Addr::from(target));
        let is_allowed = if address.is_unspecified() {
            is_request && (kind == RARP || self.allows_address(target.into()))
        } else {
            self.allows_address(address.into())
        };
        is_allowed.then_some(()).ok_or(Forged::Ip)
    }

    fn check_v4(&self, packet: &[u8]) -> Result<(), Forged> {
        let source: [u8; 4] = chunk_at(packet, 12).ok_or(Forged::Protocol)?;
        let source = Ipv4Addr::from(source);
        let upper = upper_of_v4(packet).ok_or(Forged::Protocol)?;
        match upper {
            Upper { protocol: UDP, .. } => {
                let ports = ports_of(upper)?;
                if source.is_unspecified() {
                    let asks = ports == Some((DHCP_CLIENT, DHCP_SERVER));
                    return asks.then_some(()).ok_or(Forged::Ip);
                }
                self.check_ports(ports, (DHCP_SERVER, DHCP_CLIENT))?;
            }
            Upper { protocol: ICMP, message: Some(message), .. } => {
                let kind = message.first().ok_or(Forged::Protocol)?;
                if ICMP_OF_ROUTERS.contains(kind) {
                    return Err(Forged::Service);
                }
            }
            _ => {}
        }
        let is_allowed = !source.is_unspecified() && self.allows_address(source.into());
        is_allowed.then_some(()).ok_or(Forged::Ip)
    }

    /// A server answers from its port, or to that of a client.
    fn check_ports(
        &self,
        ports: Option<(u16, u16)>,
        (server, client): (u16, u16),
    ) -> Result<(), Forged> {
        let answers = ports.is_some_and(|(source, to)| source == server || to == client);
        if answers && !self.is_dhcp_server { Err(Forged::Service) } else { Ok(()) }
    }

    fn check_v6(&self, packet: &[u8]) -> Result<(), Forged> {
        let source: [u8; 16] = chunk_at(packet, 8).ok_or(Forged::Protocol)?;
        let source = Ipv6Addr::from(source);
        if !source.is_unspecified() && !self.allows_v6(source) {
            return Err(Forged::Ip);
        }
        let upper = upper_of_v6(packet).ok_or(Forged::Protocol)?;
        let has_source = || (!source.is_unspecified()).then_some(()).ok_or(Forged::Ip);
        match upper {
            Upper { protocol: ICMPV6, message: Some(message), is_fragment } => {
                self.check_icmp_v6(message, is_fragment, source)
            }
            Upper { protocol: UDP, .. } => {
                self.check_ports(ports_of(upper)?, (DHCPV6_SERVER, DHCPV6_CLIENT))?;
                has_source()
            }
            _ => has_source(),
        }
    }

    fn check_icmp_v6(
        &self,
        message: &[u8],
        is_fragment: bool,
        source: Ipv6Addr,
    ) -> Result<(), Forged> {
        // Type, code and checksum.
        let &[kind, ..] = message.first_chunk::<4>().ok_or(Forged::Protocol)?;
        if ICMPV6_OF_ROUTERS.contains(&kind) {
            return Err(Forged::Service);
        }
        let Some(discovery) = Discovery::from_type(kind) else {
            let may_be_unspecified = MLD.contains(&kind);
            let has_source = may_be_unspecified || !source.is_unspecified();
            return has_source.then_some(()).ok_or(Forged::Ip);
        };
        // RFC 6980: a host ignores fragments of neighbour discovery.
        if is_fragment {
            return Err(Forged::Protocol);
        }
        if source.is_unspecified() && discovery == Discovery::Advertisement {
            return Err(Forged::Ip);
        }
        let target = discovery.parse_target(message).ok_or(Forged::Protocol)?;
        // A solicitation from `::` asks whether another host has the address that it is to have.
        let is_own = discovery == Discovery::Advertisement || source.is_unspecified();
        if is_own && target.is_some_and(|target| !self.allows_v6(target)) {
            return Err(Forged::Ip);
        }
        for own in neighbour_discovery::own_addresses(discovery, message) {
            self.check_mac(own.ok_or(Forged::Protocol)?)?;
        }
        Ok(())
    }
}

/// Ports of UDP; none of a fragment that is not the first.
fn ports_of(upper: Upper<'_>) -> Result<Option<(u16, u16)>, Forged> {
    let Some(message) = upper.message else { return Ok(None) };
    let &[a, b, c, d, ..] = message.first_chunk::<8>().ok_or(Forged::Protocol)?;
    Ok(Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))))
}

/// The link-local address of an Ethernet address (RFC 4291, appendix A).
fn eui_64(Mac([a, b, c, d, e, f]): Mac) -> Ipv6Addr {
    let host = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let mut address = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    address[8..].copy_from_slice(&host);
    address.into()
}

/// EtherType and payload behind VLAN tags.
fn parse_payload(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    for _ in 0..=TAGS_LIMIT {
        let kind = u16::from_be_bytes(chunk_at(frame, at)?);
        match kind {
            0x8100 | 0x88a8 | 0x9100 => at += 4,
            _ => return Some((kind, &frame[at + 2..])),
        }
    }
    None
}

fn chunk_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn mac_of(bytes: &[u8]) -> Option<Mac> {
    Some(Mac(*bytes.first_chunk()?))
}

#[cfg(test)]
#[path = "source_filter_tests.rs"]
mod tests;
