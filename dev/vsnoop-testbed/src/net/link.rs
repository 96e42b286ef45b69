//! Devices inside a namespace: taps, veth pairs, bridges, and their addresses.

use std::net::IpAddr;

use anyhow::{Context, Result};

use super::{Netns, Tap, TapOptions};
use vsnoop_netdev::ethtool::{self, Offload};

impl Netns {
    /// Makes (or, when it is persistent, joins) a tap here. It is down at first.
    ///
    /// With `TapOptions::persistent` the returned descriptor may be dropped and QEMU given the
    /// name.
    pub fn tap(&self, name: &str, options: &TapOptions) -> Result<Tap> {
        self.run(|| Ok(Tap::open(name, options)?))
            .with_context(|| format!("in network namespace {}", self.name()))
    }

    /// Makes a bridge that forwards at once (no spanning tree, no multicast snooping) and is up.
    ///
    /// Bridged packets are not shown to iptables, for which a bridge of VMs has no use.
    pub fn bridge(&self, name: &str) -> Result<()> {
        self.ip(&format!(
            "link add {name} type bridge forward_delay 0 stp_state 0 mcast_snooping 0"
        ))?;
        // Present, and on, where the kernel has br_netfilter.
        for filter in ["iptables", "ip6tables"] {
            let key = format!("net.bridge.bridge-nf-call-{filter}");
            if self.sysctl(&key).is_ok() {
                self.set_sysctl(&key, "0")?;
            }
        }
        self.up(name)
    }

    /// Joins the two namespaces by a veth pair; both ends are down at first.
    pub fn veth(&self, name: &str, peer: &Netns, peer_name: &str) -> Result<()> {
        self.ip(&format!("link add {name} type veth peer name {peer_name} netns {}", peer.name()))?;
        Ok(())
    }

    /// A veth pair whose end here is a port of `bridge`, and up.
    pub fn veth_port(&self, bridge: &str, name: &str, peer: &Netns, peer_name: &str) -> Result<()> {
        self.veth(name, peer, peer_name)?;
        self.add_port(bridge, name)
    }

    /// Switches forwarding between all devices on or off, from any source address; a single device
    /// may forward where the others do not. Before Linux 6.17 IPv6 cannot forward for a single
    /// device: all devices forward then.
    pub fn set_forwarding(&self, forwards: bool) -> Result<()> {
        let by_device = self.sysctl("net.ipv6.conf.all.force_forwarding").is_ok();
        for (key, on) in [
            ("net.ipv4.ip_forward", forwards),
            ("net.ipv6.conf.all.forwarding", forwards || !by_device),
            ("net.ipv4.conf.all.rp_filter", false),
        ] {
            self.set_sysctl(key, if on { "1" } else { "0" })?;
        }
        Ok(())
    }

    /// Makes `port` a port of `bridge`, and sets it up.
    pub fn add_port(&self, bridge: &str, port: &str) -> Result<()> {
        self.ip(&format!("link set {port} master {bridge} up"))?;
        Ok(())
    }

    /// Packets of one flow that come in together are merged (generic receive offload), as network
    /// cards' drivers do; a veth does not by itself.
    pub fn merge_on_receipt(&self, device: &str) -> Result<()> {
        self.run(|| Ok(ethtool::switch(device, Offload::Gro, true)?))
            .with_context(|| format!("switch GRO on for {device} in {}", self.name()))
    }

    /// Switches segmentation, merging and checksums by the device on or off, as `ethtool -K` does.
    ///
    /// A device that has none of an offload refuses to switch it on, which changes nothing; one
    /// that cannot be without it refuses to switch it off, and that is an error.
    pub fn set_offloads(&self, device: &str, on: bool) -> Result<()> {
        // Checksums first: there is no segmentation without them.
        let mut order = [Offload::SendChecksum, Offload::Tso, Offload::Gso, Offload::Gro];
        if !on {
            order.reverse();
        }
        self.run(|| {
            for offload in order {
                match ethtool::switch(device, offload, on) {
                    Err(_) if on => (),
                    result => {
                        result.with_context(|| format!("switch {offload:?} off for {device}"))?;
                    }
                }
            }
            Ok(())
        })
    }

    pub fn up(&self, device: &str) -> Result<()> {
        self.ip(&format!("link set {device} up"))?;
        Ok(())
    }

    pub fn delete(&self, device: &str) -> Result<()> {
        self.ip(&format!("link del {device}"))?;
        Ok(())
    }

    pub fn set_mtu(&self, device: &str, mtu_bytes: usize) -> Result<()> {
        self.ip(&format!("link set {device} mtu {mtu_bytes}"))?;
        Ok(())
    }

    /// The length of a tap's ring, in frames.
    pub fn set_txqueuelen(&self, device: &str, frames: usize) -> Result<()> {
        self.ip(&format!("link set {device} txqueuelen {frames}"))?;
        Ok(())
    }

    /// Adds an address that works at once (IPv6: without duplicate address detection).
    pub fn add_address(&self, device: &str, address: IpAddr, prefix_length: u8) -> Result<()> {
        let nodad = if address.is_ipv6() { "nodad" } else { "" };
        self.ip(&format!("addr add {address}/{prefix_length} dev {device} {nodad}"))?;
        Ok(())
    }

    /// Sets a device up that has these addresses, with the lengths of their prefixes.
    pub fn up_with(&self, device: &str, addresses: &[(IpAddr, u8)]) -> Result<()> {
        for (address, prefix_length) in addresses {
            self.add_address(device, *address, *prefix_length)?;
        }
        self.up(device)
    }

    /// Adds a permanent neighbour entry, so that no fault of the network hits ARP or NDP.
    pub fn add_neighbour(&self, device: &str, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        self.ip(&format!(
            "neigh replace {address} lladdr {} dev {device} nud permanent",
            mac_text(mac)
        ))?;
        Ok(())
    }

    pub fn set_mac(&self, device: &str, mac: [u8; 6]) -> Result<()> {
        self.ip(&format!("link set {device} address {}", mac_text(mac)))?;
        Ok(())
    }
}

/// Formats a MAC address as `ip` and QEMU do.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
