//! The two hosts of a carrier.

use std::net::{IpAddr, Ipv4Addr};

use vsnoop_testbed::hosts::{inner_v4, outer};

/// One of the two hosts: connections are opened by A's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum HostSide {
    A,
    B,
}

impl HostSide {
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// 1 or 2: the last number of overlay addresses.
    pub fn number(self) -> u8 {
        1 + self as u8
    }

    /// The host's address on the path.
    pub fn address(self) -> Ipv4Addr {
        v4(outer(self as usize))
    }

    /// The address of the guest that a bridge joins to the path.
    pub fn guest_address(self) -> Ipv4Addr {
        v4(inner_v4(self as usize, 0))
    }
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("the hosts of the lab have no IPv6"),
    }
}
