//! Options of a network.

use std::net::IpAddr;

use super::addresses::{
    Outside, bridge_v4, bridge_v6, inner_v4, inner_v6, router_v4, router_v6, vm_v4, vm_v6,
};
use super::config::TAP;

/// The device of each host that leads to the others.
pub(super) const UPLINK: &str = "uplink";
/// The second one, for the bridges alone.
pub(super) const BRIDGED_UPLINK: &str = "uplink2";
/// The bridge of a host.
pub(super) const BRIDGE: &str = "br0";

/// The path that joins the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A bridge in a namespace of its own.
    Bridge,
    /// A veth pair; two hosts.
    Veth,
    /// A relay, which forwards packets of the MTU only; two hosts. A real-time thread keeps its
    /// delays also on a busy machine.
    Relay { realtime: bool },
}

/// How VMs are connected to their host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// They are ports of a bridge. With an ordinary way the path joins the bridges, of which each
    /// has an address.
    Bridged,
    /// The host is the router of its one VM.
    Routed,
    /// The host is the router of its one VM, which is a port of a bridge.
    RoutedBridge,
}

/// Options of a network.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Prefix of the namespaces' names; see [`remove_stale`](crate::net::remove_stale).
    pub prefix: &'static str,
    pub hosts: usize,
    pub path: Path,
    pub outside: Outside,
    pub layout: Layout,
    pub vms_per_host: usize,
    /// The VMs' device is a relay behind a tap of this name, one for each host; else a veth.
    pub tap: Option<&'static str>,
    /// The VMs reach each other without a link, too.
    pub ordinary_way: bool,
    /// Without IPv6 nothing on the path comes from the hosts themselves.
    pub ipv6: bool,
    /// Transport of the links.
    pub transport: &'static str,
    /// `link.dead_after`; `None`: what a link has by default, as in measurements.
    pub dead_after: Option<&'static str>,
    /// Lines of `[link]`, beside those that every link has.
    pub link: &'static str,
    /// Lines behind everything else.
    pub more: &'static str,
    /// `[[divert]]`s of a routed host; `None`: all VMs behind their hosts.
    pub diverts: fn(usize) -> Option<String>,
    /// `link.local` of a routed host; `None`: its VM's networks.
    pub local: fn(usize) -> Option<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            prefix: "vst-",
            hosts: 2,
            path: Path::Bridge,
            outside: Outside::V4,
            layout: Layout::Bridged,
            vms_per_host: 1,
            tap: None,
            ordinary_way: false,
            ipv6: true,
            transport: "udp",
            // For tests: a link that gets no CPU for some seconds is not dead.
            dead_after: Some("60s"),
            link: "",
            more: "",
            diverts: |_| None,
            local: |_| None,
        }
    }
}

impl Plan {
    /// Each host is the router of a VM behind [`TAP`]; links divert what the VMs send each other.
    pub fn routed() -> Self {
        Self { layout: Layout::Routed, tap: Some(TAP), ..Self::default() }
    }

    /// The line of `link.dead_after`, if there is one.
    pub(super) fn dead_after_line(&self) -> String {
        self.dead_after.map_or(String::new(), |time| format!("dead_after = \"{time}\"\n"))
    }

    pub(super) fn is_routed(&self) -> bool {
        self.layout != Layout::Bridged
    }

    pub(super) fn joins_bridges(&self) -> bool {
        self.ordinary_way && !self.is_routed()
    }

    /// The device that has a host's address on the path. Behind a veth the bridges have a veth of
    /// their own, since a bridge costs time that the bare path must not cost.
    pub(super) fn outer_device(&self) -> &'static str {
        if self.joins_bridges() && self.path != Path::Veth { BRIDGE } else { UPLINK }
    }

    /// The port of [`BRIDGE`] that leads to the other hosts.
    pub(super) fn bridged_uplink(&self) -> &'static str {
        if self.path == Path::Veth { BRIDGED_UPLINK } else { UPLINK }
    }

    /// The addresses of a VM.
    pub(super) fn vm(&self, host: usize, vm: usize) -> [IpAddr; 2] {
        if self.is_routed() {
            [vm_v4(host), vm_v6(host)]
        } else {
            [inner_v4(host, vm), inner_v6(host, vm)]
        }
    }

    /// The addresses of a host in the network of its VMs.
    pub(super) fn router(&self, host: usize) -> [IpAddr; 2] {
        if self.is_routed() {
            [router_v4(host), router_v6(host)]
        } else {
            [bridge_v4(host), bridge_v6(host)]
        }
    }

    /// Addresses with the lengths of their prefixes, of the families that this network has.
    pub(super) fn with_lengths(&self, addresses: &[IpAddr]) -> Vec<(IpAddr, u8)> {
        let wanted = addresses.iter().filter(|address| self.ipv6 || address.is_ipv4());
        wanted.map(|address| (*address, if address.is_ipv4() { 24 } else { 64 })).collect()
    }
}
