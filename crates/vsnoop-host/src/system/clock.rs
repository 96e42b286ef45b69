//! The clock of the kernel side.

use anyhow::Result;
use nix::time::{ClockId, clock_gettime};

/// The clock that the kernel side stamps flows with.
pub fn monotonic_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
