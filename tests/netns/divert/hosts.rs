//! Two hosts with a VM each.
//!
//! ```text
//! [VM 0] <--relay--> [vst-port] bridge  host 0 <--+
//!                                                 | vst-wire
//! [VM 1] <--relay--> [vst-port] bridge  host 1 <--+
//! ```
//!
//! Bridged, the wire is a port of both bridges, and the VMs are neighbours; no host forwards IP by
//! itself, where the kernel allows that. Routed, each VM's host is its router, and the wire has a
//! subnet of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use serde_json::Value;
use vsnoop_testbed::net::{Net, Netns, TapOptions};
use vsnoop_testbed::relay::{Freeze, Relay, RelayOptions};
use vsnoop_testbed::topology::{Family, PORT};

use crate::PREFIX;

/// The tap of the link at each host.
pub const LINK_TAP: &str = "vsl-test";
const BRIDGE: &str = "vst-bridge";
const WIRE: &str = "vst-wire";
const VM_DEVICE: &str = "vst-vm";

/// How the VMs reach each other without a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordinary {
    Bridged,
    Routed,
}

/// They stand as long as this lives. Relays are declared first, to end before their namespaces.
pub struct Hosts {
    relays: Vec<Relay>,
    pub vms: [Netns; 2],
    pub hosts: [Netns; 2],
    ordinary: Ordinary,
}

impl Hosts {
    pub fn build(ordinary: Ordinary) -> Result<Self> {
        let net = Net::new(PREFIX);
        let hosts = [net.host("host0")?, net.host("host1")?];
        let vms = [net.host("vm0")?, net.host("vm1")?];
        for host in &hosts {
            host.set_forwarding(ordinary == Ordinary::Routed)?;
        }
        let mut this = Self { relays: Vec::new(), vms, hosts, ordinary };
        this.hosts[0].veth(WIRE, &this.hosts[1], WIRE)?;
        for number in 0..2 {
            let relay = this.host(number).with_context(|| format!("host {number}"))?;
            this.relays.push(relay);
        }
        Ok(this)
    }

    fn host(&self, number: usize) -> Result<Relay> {
        let (host, vm) = (&self.hosts[number], &self.vms[number]);
        host.bridge(BRIDGE)?;
        let (taps, options) = (TapOptions::default(), RelayOptions::default());
        let relay = host.relay(PORT, vm, VM_DEVICE, &taps, &options)?;
        host.add_port(BRIDGE, PORT)?;
        vm.up(VM_DEVICE)?;
        match self.ordinary {
            Ordinary::Bridged => host.add_port(BRIDGE, WIRE)?,
            Ordinary::Routed => host.up(WIRE)?,
        }
        for (family, length) in [(Family::V4, 24), (Family::V6, 64)] {
            let router = self.of_host(number, family);
            vm.add_address(VM_DEVICE, self.vm(number, family), length)?;
            host.add_address(BRIDGE, router, length)?;
            if self.ordinary == Ordinary::Routed {
                let other = 1 - number;
                let wire = |number: usize| subnet(family, 9, 1 + number as u8);
                vm.ip(&format!("route add default via {router}"))?;
                host.add_address(WIRE, wire(number), length)?;
                let to = self.vm(other, family);
                host.ip(&format!("route add {to} via {}", wire(other)))?;
            }
        }
        Ok(relay)
    }

    /// The address of a VM.
    pub fn vm(&self, number: usize, family: Family) -> IpAddr {
        self.address(number, family, 1 + number as u8)
    }

    /// Packets that came out of the link at a host.
    pub fn came_out(&self, number: usize) -> Result<u64> {
        let text = self.hosts[number].ip(&format!("-j -s link show {LINK_TAP}"))?;
        let links: Value = serde_json::from_str(&text).context("ip printed no JSON")?;
        let packets = links[0]["stats64"]["rx"]["packets"].as_u64();
        packets.with_context(|| format!("no counter of packets: {text}"))
    }

    fn address(&self, number: usize, family: Family, host: u8) -> IpAddr {
        let net = match self.ordinary {
            Ordinary::Bridged => 0,
            Ordinary::Routed => 1 + number as u8,
        };
        subnet(family, net, host)
    }

    /// The address of a host, on its bridge.
    pub fn of_host(&self, number: usize, family: Family) -> IpAddr {
        self.address(number, family, 10 + number as u8)
    }

    /// Makes a VM share its core, or not.
    pub fn set_freeze(&self, number: usize, freeze: Freeze) {
        self.relays[number].set_freeze(freeze);
    }
}

fn subnet(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 118, net, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd76, 0x7300, 0, net.into(), 0, 0, 0, host.into()).into(),
    }
}
