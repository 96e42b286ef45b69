//! The clock of the hooks.

use nix::time::{ClockId, clock_gettime};

use crate::error::{Result, SystemError};

/// CLOCK_MONOTONIC, with which the hooks stamp flows, ns.
pub fn monotonic_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(SystemError::from)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
