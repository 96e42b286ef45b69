//! The clock of the hooks.

use anyhow::Result;
use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, with which the hooks stamp flows, ns.
pub fn monotonic_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
