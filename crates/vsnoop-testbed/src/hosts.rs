//! Two hosts and the path between them, for links from one to the other.
//!
//! ```text
//! host A namespace                                 host B namespace
//! [vsl-bridge]-[vsl-wire] <--- veth or relay ---> [vsl-wire]-[vsl-bridge]
//!      |           10.90.0.1       10.90.0.2           |
//! [guest A namespace]                              [guest B namespace]
//! 10.90.0.3                                        10.90.0.4
//! ```
//!
//! The hosts' own addresses are those that carriers use. The path is a veth, or a link with a rate,
//! a queue, a delay and loss (a [`Relay`]); before that link super-packets are cut, so that it
//! loses and queues packets of the MTU. The guests are what a bridge carries without any tunnel.
//! Behind a veth the bridges have a veth of their own, for a bridge costs time that the bare path
//! must not.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;

use super::net::{Net, Netns, Offloads, TapOptions};
use super::relay::{Direction, Faults, Relay, RelayOptions};

/// The device of each host that leads to the other.
pub const WIRE: &str = "vsl-wire";
const BRIDGE: &str = "vsl-bridge";
const BRIDGED_WIRE: &str = "vsl-second";
const GUEST_PORT: &str = "vsl-guest";
const GUEST_DEVICE: &str = "eth0";
const PREFIX_LENGTH: u8 = 24;

/// Of the two hosts, or of what is in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// 1 or 2: the last number of addresses.
    pub fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    /// Of the host on its path.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 90, 0, self.number())
    }

    /// Of the guest that a bridge joins to the path.
    pub fn guest_address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 90, 0, 2 + self.number())
    }
}

/// The path between the hosts.
#[derive(Clone, Debug)]
pub enum Wire {
    Veth,
    /// A relay with the same faults each way.
    Relay(Box<Faults>),
}

/// The network exists until this is dropped. The relay is declared first, to end before its
/// namespaces.
#[derive(Debug)]
pub struct Hosts {
    relay: Option<Relay>,
    hosts: [Arc<Netns>; 2],
    guests: [Arc<Netns>; 2],
    net: Net,
}

impl Hosts {
    /// `prefix`: of the namespaces' names, see [`remove_stale`](super::net::remove_stale).
    pub fn build(prefix: &str, wire: &Wire) -> Result<Self> {
        let net = Net::new(prefix);
        let create = |role: &str| net.silent_host(role).map(Arc::new);
        let hosts = [create("a")?, create("b")?];
        let guests = [create("ga")?, create("gb")?];
        let [a, b] = &hosts;
        let relay = match wire {
            Wire::Veth => {
                a.veth(WIRE, b, WIRE)?;
                a.veth(BRIDGED_WIRE, b, BRIDGED_WIRE)?;
                None
            }
            Wire::Relay(faults) => {
                let taps = TapOptions { offloads: Offloads::CHECKSUM, ..TapOptions::default() };
                // Delays are to be as long as they were meant to be, whatever else runs.
                let options = RelayOptions { realtime: true, seed: 1, ..RelayOptions::default() };
                let relay = a.relay(WIRE, b, WIRE, &taps, &options)?;
                for direction in [Direction::LeftToRight, Direction::RightToLeft] {
                    relay.set_faults(direction, (**faults).clone());
                }
                Some(relay)
            }
        };
        for side in Side::BOTH {
            let host = &hosts[side as usize];
            let guest = &guests[side as usize];
            host.bridge(BRIDGE)?;
            host.veth_port(BRIDGE, GUEST_PORT, guest, GUEST_DEVICE)?;
            guest.up_with(GUEST_DEVICE, &[(side.guest_address().into(), PREFIX_LENGTH)])?;
            if relay.is_some() {
                host.add_port(BRIDGE, WIRE)?;
                host.add_address(BRIDGE, side.address().into(), PREFIX_LENGTH)?;
            } else {
                host.add_port(BRIDGE, BRIDGED_WIRE)?;
                host.up_with(WIRE, &[(side.address().into(), PREFIX_LENGTH)])?;
            }
            // Some programs will not start on a host without one.
            host.ip(&format!("route add default via {}", side.other().address()))?;
        }
        Ok(Self { relay, hosts, guests, net })
    }

    pub fn host(&self, side: Side) -> &Arc<Netns> {
        &self.hosts[side as usize]
    }

    pub fn guest(&self, side: Side) -> &Arc<Netns> {
        &self.guests[side as usize]
    }

    /// The device that has the host's address.
    pub fn device(&self) -> &'static str {
        if self.relay.is_some() { BRIDGE } else { WIRE }
    }

    /// Whether the path has a rate limit.
    pub fn is_wide_area(&self) -> bool {
        self.relay.is_some()
    }

    /// Changes the faults of the path, both ways; nothing happens to a veth.
    pub fn set_faults(&self, faults: &Faults) {
        if let Some(relay) = &self.relay {
            for direction in [Direction::LeftToRight, Direction::RightToLeft] {
                relay.set_faults(direction, faults.clone());
            }
        }
    }

    /// Bytes that a host has put on the path, from the Ethernet header on, by every way.
    pub fn wire_bytes(&self, side: Side) -> Result<u64> {
        let host = self.host(side);
        let first = host.sent_bytes(WIRE)?;
        // Over the relay, bridged frames take the same device.
        let second = if self.relay.is_some() { 0 } else { host.sent_bytes(BRIDGED_WIRE)? };
        Ok(first + second)
    }

    /// One more namespace, for a guest of some carrier.
    pub fn namespace(&self, role: &str) -> Result<Netns> {
        self.net.silent_host(role)
    }
}
