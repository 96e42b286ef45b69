//! A client, a host with a bridge and an attached tap, and a namespace that stands for a VM.
//!
//! ```text
//! client namespace        host namespace                              VM namespace
//! [vst-client] <--------> [vst-uplink] bridge [vst-port] <--relay--> [vst-vm]
//!              veth, or                        the tap that            ordinary
//!              taps and a relay                vsnoop attaches to      Linux TCP
//! ```
//!
//! The relay behind `vst-port` is the VM's device ([`Topology::guest`]); the other, if asked for,
//! is the network before the host ([`Topology::network`]). This kernel has no VLAN devices, so tags
//! are put on and taken off by the two relays: frames cross the host tagged, both stacks see none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use vsnoop_packet::format::Tag;

use super::net::{Net, Netns, Offloads, TapOptions};
use super::relay::{Direction, Faults, Relay, RelayOptions};

/// The tap of the VM in the host namespace: the one to attach to.
pub const PORT: &str = "vst-port";
/// The bridge of the host, and its port towards the client.
pub const BRIDGE: &str = "vst-bridge";
pub const UPLINK: &str = "vst-uplink";
/// The client's device.
pub const CLIENT_DEVICE: &str = "vst-client";
/// The VM's.
pub const VM_DEVICE: &str = "vst-vm";
pub const CLIENT_MAC: [u8; 6] = [2, 0x76, 0x73, 0, 0, 1];
pub const VM_MAC: [u8; 6] = [2, 0x76, 0x73, 0, 0, 2];

/// The two ends of every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Vm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Options of a topology.
#[derive(Clone, Debug)]
pub struct TopologyOptions {
    /// Prefix of the namespaces' names; see [`remove_stale`](super::net::remove_stale).
    pub prefix: String,
    /// A relay between client and host, for faults of the network. Tags need one.
    pub network: bool,
    /// Offloads that the VM accepts: without super-packets the host's stack cuts them behind the
    /// hooks.
    pub to_vm: Offloads,
    /// Offloads that the VM's own stack leaves to its device.
    pub from_vm: Offloads,
    /// Offloads that the client's stack leaves to the network. Without super-packets it builds
    /// none, so that MTU-sized segments reach the hooks.
    pub from_client: Offloads,
    /// VLAN tags on the host's bridge, outermost first.
    pub tags: Vec<Tag>,
    /// Frames that the ring of the attached tap holds.
    pub ring_frames: usize,
    /// Queues of the attached tap; with more than one the relay moves every connection between
    /// them.
    pub queues: usize,
    pub mtu_bytes: usize,
    /// Seed of the relays' faults.
    pub seed: u64,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self {
            prefix: "vst-".to_owned(),
            network: false,
            to_vm: Offloads::SUPER_PACKETS,
            from_vm: Offloads::SUPER_PACKETS,
            from_client: Offloads::SUPER_PACKETS,
            tags: Vec::new(),
            ring_frames: 1000,
            queues: 1,
            mtu_bytes: 1500,
            seed: 1,
        }
    }
}

/// The network exists until this is dropped. Relays are declared first, to end before their
/// namespaces.
#[derive(Debug)]
pub struct Topology {
    guest: Relay,
    network: Option<Relay>,
    pub client: Netns,
    pub vm: Netns,
    pub host: Netns,
}

impl Topology {
    pub fn build(options: &TopologyOptions) -> Result<Self> {
        ensure!(options.network || options.tags.is_empty(), "VLAN tags need the network relay");
        let net = Net::new(&options.prefix);
        // Its bridge has no addresses.
        let host = net.silent_host("host")?;
        let (client, vm) = (net.host("client")?, net.host("vm")?);
        host.bridge(BRIDGE)?;

        let tap = |netns: &Netns, name: &str, offloads: Offloads| {
            netns.tap(name, &TapOptions { offloads, ..TapOptions::default() })
        };
        let network = if options.network {
            let left = tap(&client, CLIENT_DEVICE, options.from_client)?;
            let right = tap(&host, UPLINK, Offloads::SUPER_PACKETS)?;
            let right_tags = options.tags.clone();
            let seed = options.seed;
            let options = RelayOptions { seed, right_tags, ..RelayOptions::default() };
            Some(Relay::start(vec![left], right, &options)?)
        } else {
            host.veth(UPLINK, &client, CLIENT_DEVICE)?;
            None
        };
        let queue = || {
            let (multi_queue, offloads) = (options.queues > 1, options.to_vm);
            host.tap(PORT, &TapOptions { multi_queue, offloads, ..TapOptions::default() })
        };
        let attached = (0..options.queues).map(|_| queue()).collect::<Result<_>>()?;
        let inside = tap(&vm, VM_DEVICE, options.from_vm)?;
        let guest = Relay::start(
            attached,
            inside,
            &RelayOptions {
                seed: options.seed.wrapping_add(1),
                left_tags: options.tags.clone(),
                ..RelayOptions::default()
            },
        )?;

        for (netns, device) in
            [(&client, CLIENT_DEVICE), (&vm, VM_DEVICE), (&host, UPLINK), (&host, PORT)]
        {
            netns.set_mtu(device, options.mtu_bytes)?;
        }
        host.set_txqueuelen(PORT, options.ring_frames)?;
        if !options.from_client.tso {
            client.ip(&format!("link set {CLIENT_DEVICE} gso_max_segs 1"))?;
        }
        for port in [UPLINK, PORT] {
            host.add_port(BRIDGE, port)?;
        }
        let ends = [
            (Side::Client, &client, CLIENT_DEVICE, CLIENT_MAC),
            (Side::Vm, &vm, VM_DEVICE, VM_MAC),
        ];
        for (side, netns, device, mac) in ends {
            netns.set_mac(device, mac)?;
            let (other, other_mac) = match side {
                Side::Client => (Side::Vm, VM_MAC),
                Side::Vm => (Side::Client, CLIENT_MAC),
            };
            let families = [(Family::V4, 24), (Family::V6, 64)];
            netns.up_with(
                device,
                &families.map(|(family, length)| (address(side, family), length)),
            )?;
            for (family, _) in families {
                netns.add_neighbour(device, address(other, family), other_mac)?;
            }
        }
        Ok(Self { guest, network, client, vm, host })
    }

    /// Adds a second way from the client to the bridge: a veth pair with these names, of which the
    /// client's end has a MAC address and no other.
    pub fn add_way(&self, port: &str, device: &str, mac: [u8; 6]) -> Result<()> {
        self.host.veth_port(BRIDGE, port, &self.client, device)?;
        self.client.set_mac(device, mac)?;
        self.client.up(device)
    }

    pub fn netns(&self, side: Side) -> &Netns {
        match side {
            Side::Client => &self.client,
            Side::Vm => &self.vm,
        }
    }

    /// The VM's device: what it loses may have been acknowledged already.
    pub fn guest(&self) -> &Relay {
        &self.guest
    }

    /// The network between client and host, if there is one.
    pub fn network(&self) -> Option<&Relay> {
        self.network.as_ref()
    }

    /// Sets the faults of frames on their way to the VM or from it, inside the VM's device.
    pub fn set_guest_faults(&self, towards: Side, faults: Faults) {
        let direction = match towards {
            Side::Vm => Direction::LeftToRight,
            Side::Client => Direction::RightToLeft,
        };
        self.guest.set_faults(direction, faults);
    }

    /// Sets the faults of the network; `false` if it is a veth, which has none.
    pub fn set_network_faults(&self, towards: Side, faults: Faults) -> bool {
        let direction = match towards {
            Side::Vm => Direction::LeftToRight,
            Side::Client => Direction::RightToLeft,
        };
        self.network.as_ref().map(|relay| relay.set_faults(direction, faults)).is_some()
    }
}

/// The address of one end.
pub fn address(side: Side, family: Family) -> IpAddr {
    let host = match side {
        Side::Client => 1,
        Side::Vm => 2,
    };
    match family {
        Family::V4 => Ipv4Addr::new(10, 118, 115, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd76, 0x7300, 0, 0, 0, 0, 0, host.into()).into(),
    }
}
