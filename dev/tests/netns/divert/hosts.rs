//! Two hosts with a VM each.

use anyhow::Result;
use vsnoop_testbed::hosts::{Host, Layout, Network, Path, Plan};
use vsnoop_testbed::topology::PORT;

/// The tap of the link at each host.
pub const LINK_TAP: &str = "vsl-test";

/// Builds two hosts with a VM each behind [`PORT`], a port of the host's bridge.
///
/// `Bridged`, the path joins both bridges, the VMs are neighbours, and no host forwards IP by
/// itself, where the kernel allows that. `RoutedBridge`, each VM's host is its router.
pub fn build(layout: Layout) -> Result<Network> {
    let (path, tap) = (Path::Veth, Some(PORT));
    Network::build(Plan { layout, path, tap, ordinary_way: true, ..Plan::default() })
}

/// Packets that came out of the link at a host.
pub fn came_out(host: &Host) -> Result<u64> {
    host.netns.device_counters(LINK_TAP)?.received_packets()
}
