//! CPU time that others use while something happens. It counts the same on a busy machine, where
//! everything takes longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::sandbox::pid_of;

/// Between two looks; what a process uses after the last look before it is killed is not seen.
const LOOK: Duration = Duration::from_millis(10);

/// Time that a background process used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    pub elapsed: Duration,
    /// By all its threads, in user space and in the kernel.
    pub cpu: Duration,
}

impl Spent {
    /// Parts of one CPU.
    pub fn share(&self) -> f64 {
        self.cpu.as_secs_f64() / self.elapsed.as_secs_f64()
    }
}

/// Watches the process that has this role, and the next one after a kill, until `is_over`.
pub fn watch(role: &str, is_over: &AtomicBool) -> Spent {
    let began = Instant::now();
    let mut cpu = Duration::ZERO;
    let mut last = None;
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        let look = look(role);
        match (last, look) {
            (Some((before, used)), Some((pid, now))) if before == pid => cpu += now - used,
            // The next one: all that it has used.
            (Some(_), Some((_, now))) => cpu += now,
            _ => {}
        }
        last = look.or(last);
        if is_last {
            return Spent { elapsed: began.elapsed(), cpu };
        }
        thread::sleep(LOOK);
    }
}

/// The id of the process that has this role, and the CPU time that this process has used; `None`
/// if no process has the role now.
fn look(role: &str) -> Option<(i32, Duration)> {
    let pid = pid_of(role).ok().flatten()?;
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).ok()?;
    Some((pid, clock_gettime(clock).ok()?.into()))
}

/// CPU time of the calling thread.
pub fn by_this_thread() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}
