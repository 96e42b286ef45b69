//! What a sample of a live migration has beside its configuration.

use serde::{Deserialize, Serialize};

/// One migration of a machine to the other host, while clients upload to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Migrated {
    /// Time for which the guest ran at neither host.
    pub downtime_ms: f64,
    /// From QEMU's command to its end.
    pub total_ms: f64,
    pub transferred_bytes: u64,
    /// Time that `vsnoop pause` took before, with all attempts, and their number.
    pub pause_ms: Option<f64>,
    pub pauses: u32,
    /// The last attempt failed: bytes were still outstanding.
    pub pause_failed: bool,
    /// Acknowledged early at the source, and not by the guest when it had left.
    pub left_behind_bytes: u64,
    /// The longest time without an acknowledgement of any one connection that had data
    /// outstanding, of those times that the switch falls into.
    pub stall_ms: f64,
    pub requests: u32,
    /// Requests that failed, or had no end within the limit.
    pub failed: u32,
    pub hung: u32,
    /// The longest request that the switch fell into, until its end or error.
    pub longest_request_ms: f64,
    /// The median of the others that succeeded.
    pub usual_request_ms: f64,
    /// From the guest's first moment at the target to the first early ACK there.
    pub accelerated_ms: Option<f64>,
    /// Bytes that the host or the guest has acknowledged to all clients together, against the time
    /// since the guest stopped; both from the first value on.
    pub progress: Vec<Acknowledged>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Acknowledged {
    pub at_ms: f64,
    pub bytes: u64,
}
