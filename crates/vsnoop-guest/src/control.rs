//! Commands to a guest: one JSON object per line, each answered by one line, in order.

use serde::{Deserialize, Serialize};

/// The guest's side of the control channel.
pub const DEVICE: &str = "/dev/ttyS1";

/// Where the host puts the guest's addresses on the kernel's command line: `ADDRESS/PREFIX` of eth0,
/// eth1 and so on, with commas between them.
pub const ADDRESS_PARAMETER: &str = "vsnoop.address";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Answered with [`Reply::Done`] as soon as the guest is ready.
    Ping,
    /// Measures how many iterations of the load loop fit into a millisecond of CPU time. The guest
    /// must have the CPU for itself meanwhile.
    Calibrate,
    /// Replaces the load: `share` of each period is burnt as calibrated iterations, the rest is
    /// slept; 1.0 spins, 0.0 stops.
    Load {
        share: f64,
        period_ms: u32,
    },
    /// Drops this share of the TCP segments with payload that come in (0 removes the rule).
    Firewall {
        drop_percent: u32,
    },
    /// Counts of the transfer server.
    Stats,
    PowerOff,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Done,
    Calibrated { iterations_per_ms: u64 },
    Stats(Stats),
    Failed { message: String },
}

/// What the transfer server has done since boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Connections whose stream is not finished yet.
    pub open: u64,
    pub exact: u64,
    pub mismatched: u64,
    pub short: u64,
    /// Connections that ended with an error such as a reset.
    pub failed: u64,
    pub received_bytes: u64,
    /// Segments that the firewall rule has dropped.
    pub firewall_drops: u64,
}
