//! Where the threads of virtual machines run: vCPUs on one core, all other threads (QEMU's main
//! loops, the host's networking, the client) on another one, as the driver domain of the vSnoop
//! report's last experiment did, with a higher priority than the machine's other work: a main loop
//! that waits for its core while it holds QEMU's lock would stop its vCPU.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The core that the guests share.
pub const GUEST_CORE: usize = 1;
/// The core of everything else.
pub const HOST_CORE: usize = 0;

/// The priority of a vCPU that has the guests' core for itself.
const ALONE: i32 = 1;
/// The priority of QEMU's threads that share the guests' core with vCPUs in slices: before each of
/// them, as a driver domain that wakes up is before other domains.
const BESIDE: i32 = 5;
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

/// The vCPUs on the guests' core, before all ordinary threads there.
pub fn alone(process: Pid, vcpus: &[Pid]) -> Result<()> {
    place(process, vcpus)?;
    vcpus.iter().try_for_each(|&vcpu| first_in(vcpu, ALONE))
}

/// The vCPUs on the guests' core, the other threads of the process on the host's.
pub fn place(process: Pid, vcpus: &[Pid]) -> Result<()> {
    for thread in others(process, vcpus)? {
        pin(thread, HOST_CORE)?;
        ended_or(set_policy(thread, libc::SCHED_OTHER, 0))?;
        prefer(thread)?;
    }
    vcpus.iter().try_for_each(|&vcpu| pin(vcpu, GUEST_CORE))
}

/// The other threads of the process on the guests' core, too, where they run before the vCPUs.
pub fn beside(process: Pid, vcpus: &[Pid]) -> Result<()> {
    for thread in others(process, vcpus)? {
        pin(thread, GUEST_CORE)?;
        ended_or(first_in(thread, BESIDE))?;
    }
    Ok(())
}

/// The threads of a process that are no vCPUs.
fn others(process: Pid, vcpus: &[Pid]) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    let tasks = format!("/proc/{process}/task");
    for entry in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
        let name = entry.with_context(|| format!("list {tasks}"))?.file_name();
        let id = name.to_string_lossy().parse().context("a thread's id")?;
        let thread = Pid::from_raw(id);
        if !vcpus.contains(&thread) {
            found.push(thread);
        }
    }
    Ok(found)
}

/// A worker may have ended meanwhile.
fn ended_or(set: Result<()>) -> Result<()> {
    match set {
        Err(error) if error.downcast_ref() == Some(&nix::Error::ESRCH) => Ok(()),
        other => other,
    }
}

/// Gives these vCPUs a priority over all ordinary threads of the core, or none.
pub fn favour(vcpus: &[Pid], favoured: bool) -> Result<()> {
    let (policy, priority) = if favoured { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    vcpus.iter().try_for_each(|&vcpu| set_policy(vcpu, policy, priority))
}

/// The time that a thread has run.
pub fn cpu_time(thread: Pid) -> Result<Duration> {
    schedstat(thread, 0)
}

/// The time that a thread has been ready to run while others ran.
pub fn queued_time(thread: Pid) -> Result<Duration> {
    schedstat(thread, 1)
}

/// A field of /proc/PID/schedstat (Documentation/scheduler/sched-stats.rst).
fn schedstat(thread: Pid, field: usize) -> Result<Duration> {
    let path = format!("/proc/{thread}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let value = text.split_whitespace().nth(field).and_then(|word| word.parse().ok());
    value.map(Duration::from_nanos).with_context(|| format!("{path} has no time: {text:?}"))
}

pub(super) fn pin(thread: Pid, core: usize) -> Result<()> {
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

/// Puts a thread under SCHED_FIFO with this priority.
pub fn first_in(thread: Pid, priority: i32) -> Result<()> {
    set_policy(thread, libc::SCHED_FIFO, priority)
}

fn set_policy(thread: Pid, policy: i32, priority: i32) -> Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the call reads one sched_param, which lives on.
    let result = unsafe { libc::sched_setscheduler(thread.as_raw(), policy, &parameter) };
    nix::Error::result(result).with_context(|| {
        format!(
            "give thread {thread} priority {priority}: a CPU control group without realtime budget?"
        )
    })?;
    Ok(())
}
