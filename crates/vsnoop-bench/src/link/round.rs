//! What the rounds of all carriers have in common: how long they take, on which cores, and what CPU
//! time they took.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;

use crate::stage::{SENDER_CORE, VM_CORE as RECEIVER_CORE};

pub const WARM_UP: Duration = Duration::from_millis(300);
pub const ROUND: Duration = Duration::from_secs(1);
pub const START: Duration = Duration::from_secs(5);

/// Lets the calling thread, and what it starts, use both cores.
pub fn roam() -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(SENDER_CORE)?;
    cores.set(RECEIVER_CORE)?;
    sched_setaffinity(Pid::from_raw(0), &cores).context("leave a core")
}

/// Of all threads of this process, in user space and in the kernel.
pub fn cpu_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("read the CPU time")?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros.max(0) as u64))
}
