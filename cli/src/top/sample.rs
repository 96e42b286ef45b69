//! The state of the host at one moment, as it was read.

use std::net::SocketAddr;
use std::time::Instant;

use vsnoop_bpf::types::HISTOGRAM_BUCKETS;

/// Distinguishes an attachment from others, also of the same tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u64);

/// All ports.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    pub ports: Vec<PortSample>,
    /// Number of directories of pins that cannot be read.
    pub damaged: usize,
    pub has_helper: bool,
}

/// One port. Counters count from its attachment.
#[derive(Clone, Debug)]
pub struct PortSample {
    pub id: PortId,
    pub name: String,
    /// Argument of `--netns`; `None` in the command's own.
    pub netns: Option<String>,
    pub state: &'static str,
    /// The VM's name, or that of the process that holds the tap.
    pub vm: Option<String>,
    pub early_bytes: u64,
    pub to_vm_bytes: u64,
    /// Histogram of the time from the early ACK to the VM's own.
    pub masked_ns: [u64; HISTOGRAM_BUCKETS as usize],
    pub flows_created: u64,
    pub resets: u64,
    /// `None` for a port that is only observed.
    pub hold: Option<HoldSample>,
    /// Records of flows when they were last counted.
    pub flows: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldSample {
    pub used_bytes: u64,
    pub size_bytes: u64,
    pub engine_is_alive: bool,
}

/// The flows of one port.
#[derive(Clone, Debug)]
pub struct FlowsSample {
    pub port: PortId,
    pub at: Instant,
    /// `None` if the port is not attached any more.
    pub flows: Option<Vec<FlowSample>>,
}

/// Distinguishes a flow from others of its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    pub sender: SocketAddr,
    pub vm: SocketAddr,
    /// Outer and inner VLAN tag, 0 if there is none.
    pub vlans: [u16; 2],
    pub vm_mac: [u8; 6],
}

#[derive(Clone, Copy, Debug)]
pub struct FlowSample {
    pub id: FlowId,
    pub mode: &'static str,
    pub early_bytes: u64,
    /// Acknowledged early, and not by the VM.
    pub outstanding_bytes: u64,
    /// The part of these that waits on this host; `None` without a hold.
    pub held_bytes: Option<u64>,
    pub resent_bytes: Option<u64>,
    pub idle_ns: u64,
}
