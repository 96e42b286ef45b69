//! What experiments/service.toml declares of the parts.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub full: Counts,
    pub quick: Counts,
    pub short: Short,
    pub coming: Coming,
    /// Of the part `kills`.
    #[serde(rename = "worker")]
    pub workers: Vec<Worker>,
}

/// How often something happens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    pub kills: usize,
    pub connections: u64,
    pub taps: usize,
    pub ports: usize,
    pub scrapes: usize,
    pub migrations: usize,
}

/// Short connections.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Short {
    /// At the VM, each with a thread and with clients of its own.
    pub listeners: usize,
    pub clients_each: usize,
    /// The first ones fill caches and pools, and are not counted.
    pub warm_up: u64,
}

/// Taps that come and go.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coming {
    pub every_ms: u64,
    /// At a time.
    pub there: usize,
}

/// Connections that are repeated under kills.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    pub to_vm_bytes: u64,
    pub from_vm_bytes: u64,
    #[serde(default)]
    pub slow_vm: bool,
    #[serde(default)]
    pub vm_opens: bool,
}
