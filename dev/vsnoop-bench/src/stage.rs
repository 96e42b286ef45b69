//! The network of the benchmarks: sender and host on one core, the VM's stand-in
//! on another, and the flow's packets in order.
//!
//! A network card gives all packets of a flow to one core; a veth gives them to
//! whichever core sends, and with two senders (the application, and the ACK that
//! lets TCP send on) they overtake each other. Receive packet steering puts that
//! right.

use anyhow::{Context, Result};
use vsnoop_testbed::bulk::pin;
use vsnoop_testbed::net::{Netns, Offloads};
use vsnoop_testbed::topology::{CLIENT_DEVICE, Topology, TopologyOptions, UPLINK};

/// Prefix of the namespaces; left-overs of a crashed run are found by it.
pub const PREFIX: &str = "vsb-";

/// The VM has a core to itself; sender and host saturate another.
pub const VM_CORE: usize = 1;
pub const SENDER_CORE: usize = 0;

/// Super-packets, or MTU-sized segments with checksum offload.
pub const SHAPES: [(&str, Offloads); 2] =
    [("gso", Offloads::SUPER_PACKETS), ("mtu", Offloads::CHECKSUM)];

pub fn build(from_client: Offloads) -> Result<Topology> {
    build_with(TopologyOptions { from_client, ..TopologyOptions::default() })
}

pub fn build_with(options: TopologyOptions) -> Result<Topology> {
    let options = TopologyOptions { prefix: PREFIX.into(), ..options };
    // Threads of the VM's stand-in inherit the core of this thread; so does the sender.
    pin(VM_CORE)?;
    let topology = Topology::build(&options)?;
    pin(SENDER_CORE)?;
    steer(&topology.host, UPLINK)?;
    steer(&topology.client, CLIENT_DEVICE)?;
    Ok(topology)
}

/// The kernel handles packets that the device receives on the sender's core, in order.
fn steer(netns: &Netns, device: &str) -> Result<()> {
    let mask = 1 << SENDER_CORE;
    let write = format!("echo {mask} > /sys/class/net/{device}/queues/rx-0/rps_cpus");
    // `ip netns exec` shows the namespace's own /sys.
    let status = std::process::Command::new("ip")
        .args(["netns", "exec", netns.name(), "sh", "-c", &write])
        .status()
        .context("run ip netns exec")?;
    anyhow::ensure!(status.success(), "packets of {device} cannot be steered to one core");
    Ok(())
}
