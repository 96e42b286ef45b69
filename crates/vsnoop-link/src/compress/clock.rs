//! What coding takes.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Tells what encoding takes: nanoseconds since whenever.
pub type Clock = Box<dyn FnMut() -> u64 + Send>;

/// CPU time of this thread: a time slice that another program has taken is no cost of a codec.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    time.map_or(0, |time| time.as_nanos() as u64)
}
