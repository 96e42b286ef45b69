//! The clock of the hooks, and that of this process.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::error::{Result, SystemError};

/// CLOCK_MONOTONIC, with which the hooks stamp flows, ns.
pub fn monotonic_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(SystemError::from)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// CPU time of this process; zero if it cannot be read.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
