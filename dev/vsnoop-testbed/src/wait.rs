//! Waiting for events of other processes, and for time to pass.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::interrupt;

/// The polling interval.
const INTERVAL: Duration = Duration::from_millis(10);
/// A pause looks this often whether an interrupt ends it.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Waits until `done` returns true. Fails after `limit`, if `done` fails, and when the run is
/// interrupted; `what` is the event, for the error message: "the helper has finished".
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        interrupt::check()?;
        ensure!(start.elapsed() < limit, "waited in vain until {what}");
        thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Sleeps, unless the run is interrupted.
pub fn pause(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        interrupt::check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LONGEST_SLEEP));
    }
}
