//! Waiting for events of other processes, and for time to pass.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::interrupt;

/// The shortest and the longest polling interval.
const INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// A look that takes long, because it runs a program, is repeated after this many times as long.
const LOOKS: u32 = 4;
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
        let look = Instant::now();
        if done()? {
            return Ok(());
        }
        interrupt::check()?;
        ensure!(start.elapsed() < limit, "waited in vain until {what}");
        sleep_after(look.elapsed());
    }
}

/// The pause after a look that took this long and saw nothing.
pub fn sleep_after(look: Duration) {
    thread::sleep((look * LOOKS).clamp(INTERVAL, LONGEST_INTERVAL));
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
