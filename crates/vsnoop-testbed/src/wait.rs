//! Waiting for events of other processes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::interrupt;

/// The polling interval.
const INTERVAL: Duration = Duration::from_millis(10);

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
