//! Waiting for events of other processes, and for time to pass.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::interrupt;

/// The shortest and the longest polling interval.
const INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// The next look comes after this part of the time that was waited: most looks run a program.
const PART: u32 = 16;
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
    loop {
        if done()? {
            return Ok(());
        }
        interrupt::check()?;
        ensure!(start.elapsed() < limit, "waited in vain until {what}");
        sleep_between_looks(start.elapsed());
    }
}

/// Sleeps until the next look, if all before it took this time and saw nothing.
pub fn sleep_between_looks(waited: Duration) {
    thread::sleep((waited / PART).clamp(INTERVAL, LONGEST_INTERVAL));
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
