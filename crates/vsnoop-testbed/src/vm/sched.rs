//! Virtual machines that share a core.
//!
//! All vCPU threads run under SCHED_RR on one core, so that each waits for the slices of the
//! others, as under Xen's credit scheduler in the paper. All other threads (QEMU's main loops, the
//! host's networking, the client) run on another core, as the paper's driver domain did, with a
//! higher priority than the machine's other work: a main loop that waits for its core while it
//! holds QEMU's lock makes its vCPU give up the slice.
//!
//! Under TCG that lock limits the likeness: a vCPU needs it for each interrupt and timer, blocks
//! when the main loop on the other core holds it, and then queues behind the others. Measured with
//! three machines at load 0.6: some 160 such switches per second and vCPU, slices of about 2 ms
//! while it runs. With the main loops on the guests' core above the vCPUs (SCHED_FIFO) there are 7
//! and slices last the full 30 ms; a handshake then waits up to 60 ms, but a small transfer that
//! follows it finds its machine at the beginning of a slice.

use std::fs;
use std::thread;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The core that the guests share.
pub const GUEST_CORE: usize = 1;
/// The core of everything else.
pub const HOST_CORE: usize = 0;

const PRIORITY: i32 = 1;
/// The SCHED_RR priority of a favoured machine, which runs whenever it has work.
const FAVOURED_PRIORITY: i32 = 2;
const HOST_NICE: i32 = -20;

pub fn require_two_cores() -> Result<()> {
    let cores = thread::available_parallelism().context("count the cores")?.get();
    if cores < 2 {
        bail!(
            "this machine lets the lab use {cores} core; an experiment needs two: core \
             {GUEST_CORE} for the guests and core {HOST_CORE} for the host's side"
        );
    }
    Ok(())
}

/// Puts the calling thread, and all that it starts from now on, on the host's core.
pub fn pin_self() -> Result<()> {
    let own = Pid::from_raw(0);
    pin(own, HOST_CORE).and_then(|()| prefer(own)).context("give the lab the host's core")
}

/// Puts the calling thread on the guests' core, with no preference over them.
pub fn as_a_guest() -> Result<()> {
    let own = Pid::from_raw(0);
    pin(own, GUEST_CORE)?;
    set_nice(own, 0).context("take the preference from a thread")
}

/// The calling thread is on the host's core, as [`pin_self`] does it, until this is dropped by it.
#[derive(Debug)]
pub struct OnHostCore {
    before: CpuSet,
    nice: libc::c_int,
}

impl OnHostCore {
    pub fn enter() -> Result<Self> {
        let own = Pid::from_raw(0);
        let before = sched_getaffinity(own).context("ask for the cores of the lab")?;
        // SAFETY: a plain system call, which cannot fail for the calling thread.
        let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        pin_self()?;
        Ok(Self { before, nice })
    }
}

impl Drop for OnHostCore {
    fn drop(&mut self) {
        let own = Pid::from_raw(0);
        let restored = sched_setaffinity(own, &self.before).and_then(|()| set_nice(own, self.nice));
        if let Err(error) = restored {
            tracing::warn!("the lab stays on the host's core: {error}");
        }
    }
}

/// The vCPUs share the CPU time with those of other machines on the guests' core.
pub fn share(process: Pid, vcpus: &[Pid]) -> Result<()> {
    place(process, vcpus)?;
    vcpus.iter().try_for_each(|&vcpu| round_robin(vcpu, PRIORITY))
}

/// The vCPUs on the guests' core, the other threads of the process on the host's.
pub fn place(process: Pid, vcpus: &[Pid]) -> Result<()> {
    let tasks = format!("/proc/{process}/task");
    for entry in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
        let name = entry.with_context(|| format!("list {tasks}"))?.file_name();
        let id = name.to_string_lossy().parse().context("a thread's id")?;
        let thread = Pid::from_raw(id);
        if !vcpus.contains(&thread) {
            pin(thread, HOST_CORE)?;
            prefer(thread)?;
        }
    }
    vcpus.iter().try_for_each(|&vcpu| pin(vcpu, GUEST_CORE))
}

/// Gives these vCPUs a higher priority than all others of the core, or the same.
pub fn favour(vcpus: &[Pid], favoured: bool) -> Result<()> {
    let priority = if favoured { FAVOURED_PRIORITY } else { PRIORITY };
    vcpus.iter().try_for_each(|&vcpu| round_robin(vcpu, priority))
}

fn pin(thread: Pid, core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core).with_context(|| format!("core {core}"))?;
    match sched_setaffinity(thread, &set) {
        // A worker that ended meanwhile.
        Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
        Err(error) => bail!("put thread {thread} on core {core}: {error}"),
    }
}

fn prefer(thread: Pid) -> Result<()> {
    match set_nice(thread, HOST_NICE) {
        Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
        Err(error) => bail!("give thread {thread} the nice value {HOST_NICE}: {error}"),
    }
}

fn set_nice(thread: Pid, nice: libc::c_int) -> nix::Result<()> {
    // SAFETY: a plain system call; on Linux it changes the one thread with this id.
    let result =
        unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.as_raw() as libc::id_t, nice) };
    nix::Error::result(result).map(drop)
}

fn round_robin(thread: Pid, priority: i32) -> Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the call reads one sched_param, which lives on.
    let result = unsafe { libc::sched_setscheduler(thread.as_raw(), libc::SCHED_RR, &parameter) };
    nix::Error::result(result).with_context(|| {
        format!("put thread {thread} under SCHED_RR: a CPU control group without realtime budget?")
    })?;
    Ok(())
}
