//! A drain: the port is paused, and acknowledges nothing early, until the VM has
//! acknowledged all that the host has.

/// Interval of looks.
pub const STEP_NS: u64 = 5_000_000;
/// How long a drain takes at most, unless the operator says otherwise, s.
pub const TIMEOUT_S: f64 = 10.0;

/// Does the drain end now? `outstanding`: bytes of the port that its VM has not acknowledged.
pub fn is_over(outstanding: u64, waited_ns: u64, timeout_ns: u64) -> bool {
    outstanding == 0 || waited_ns >= timeout_ns
}
