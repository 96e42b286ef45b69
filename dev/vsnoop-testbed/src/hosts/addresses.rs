//! Addresses of hosts on their path, and of VMs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Port of links. Each network has its own namespaces.
pub const PORT: u16 = 7757;

/// Address family by which hosts reach each other, and at which links listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// IPv4, on IPv4 sockets.
    V4,
    /// IPv4, where links listen by default: on IPv6 sockets that take both.
    V4ByDefault,
    /// IPv6, where links listen by default.
    V6,
}

impl Outside {
    pub fn address(self, host: usize) -> IpAddr {
        match self {
            Self::V4 | Self::V4ByDefault => outer(host),
            Self::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1 + host as u16).into(),
        }
    }

    /// Length of the prefix of its network.
    pub fn prefix_length(self) -> u8 {
        if self == Self::V6 { 64 } else { 24 }
    }

    /// `link.listen`, unless links listen by default.
    pub(super) fn listen(self) -> Option<SocketAddr> {
        (self == Self::V4).then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT))
    }
}

/// A host's address on the path.
pub fn outer(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 1 + host as u8).into()
}

/// See [`Network::unknown_source`](super::Network::unknown_source).
pub fn unknown_source(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 200 + number).into()
}

/// A node of etcd on the hosts' network.
pub(super) fn etcd_node(number: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 240 + number as u8).into()
}

fn v4(net: usize, host: usize) -> IpAddr {
    Ipv4Addr::new(10, 88, net as u8, host as u8).into()
}

fn v6(net: usize, host: usize) -> IpAddr {
    Ipv6Addr::new(0xfd88, net as u16, 0, 0, 0, 0, 0, host as u16).into()
}

/// A bridged VM's address: all are in one network.
pub fn inner_v4(host: usize, vm: usize) -> IpAddr {
    v4(0, 1 + 10 * host + vm)
}

pub fn inner_v6(host: usize, vm: usize) -> IpAddr {
    v6(0, 1 + 10 * host + vm)
}

/// The address of a host's bridge among the bridged VMs.
pub(super) fn bridge_v4(host: usize) -> IpAddr {
    v4(0, 200 + host)
}

pub(super) fn bridge_v6(host: usize) -> IpAddr {
    v6(0, 200 + host)
}

/// A routed VM's address: each is in a network of its own, which has the number of its host.
pub fn vm_v4(net: usize) -> IpAddr {
    v4(net, 1)
}

pub fn vm_v6(net: usize) -> IpAddr {
    v6(net, 1)
}

/// The address of a host towards its routed VM.
pub fn router_v4(net: usize) -> IpAddr {
    v4(net, 100)
}

pub(super) fn router_v6(net: usize) -> IpAddr {
    v6(net, 100)
}

/// The network of a routed VM.
pub fn net_v4(number: usize) -> String {
    format!("{}/24", v4(number, 0))
}

pub fn net_v6(number: usize) -> String {
    format!("{}/64", v6(number, 0))
}
