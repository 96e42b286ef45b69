//! Real-time priority of the background processes, within a budget.
//!
//! Helper and engine must get CPU time while hundreds of processes compete for it, however they
//! were started: they replace the scheduling policy, nice value and CPU affinity that they inherit
//! (docs/decisions/0021-priority.md). So that neither can monopolise a core, each has a *budget* of
//! CPU time at that priority for each of its periods. Beyond the budget it runs as an ordinary
//! process until the next period.
//!
//! The kernel enforces the budget: a timer on the thread's CPU clock (timer_create(2),
//! CLOCK_THREAD_CPUTIME_ID) sends SIGXCPU to the thread, whose handler lowers the priority, so that
//! no loop has to check its time. The kernel looks at such timers at its own ticks (CONFIG_HZ): a
//! thread may use a tick more than its budget.
//!
//! There is no RLIMIT_RTTIME. What it counts begins anew only when a thread wakes up at a real-time
//! priority, and one that is busy has used its budget up before it waits: it would be killed after
//! as many periods as the limit has room for.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::unistd::Pid;

use crate::error::{Error, Result, with_causes};

/// Priority in SCHED_FIFO: the lowest, after kernel threads and before all ordinary processes.
const PRIORITY: i32 = 1;

/// The priority of the calling thread.
#[derive(Debug)]
pub struct Priority {
    /// `None`: the kernel grants none.
    timer: Option<libc::timer_t>,
    budget: Duration,
}

impl Priority {
    /// Drops inherited scheduling attributes, and raises the priority for `budget` of CPU time from
    /// each [`Priority::renew`] to the next. Without the privilege the thread stays ordinary.
    pub fn take(budget: Duration) -> Self {
        if let Err(error) = leave_inherited_behind() {
            tracing::debug!("inherited scheduling stays: {}", with_causes(&error));
        }
        let timer = watch_budget().and_then(|timer| raise().map(|()| timer)).inspect_err(|error| {
            tracing::warn!("it works with ordinary priority: {}", with_causes(error));
            let _ = lower();
        });
        let mut priority = Self { timer: timer.ok(), budget };
        priority.renew();
        priority
    }

    /// Begins a new period.
    pub fn renew(&mut self) {
        let Some(timer) = self.timer else { return };
        if let Err(error) = self.start(timer).and_then(|()| raise()) {
            tracing::warn!("it goes on with ordinary priority: {}", with_causes(&error));
            let _ = lower();
            self.timer = None;
        }
    }

    fn start(&self, timer: libc::timer_t) -> Result<()> {
        let value = libc::timespec {
            tv_sec: self.budget.as_secs() as _,
            tv_nsec: self.budget.subsec_nanos().into(),
        };
        let once = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: value,
        };
        // SAFETY: a timer of this process, and a complete record; the former value is not asked
        // for.
        check(unsafe { libc::timer_settime(timer, 0, &once, ptr::null_mut()) })
            .map_err(Error::call("timer_settime"))
    }
}

/// Resets nice value and CPU affinity. (Session and process group: [`crate::background`].)
fn leave_inherited_behind() -> Result<()> {
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        all.set(cpu).map_err(Error::call("make a set of all CPUs"))?;
    }
    // SAFETY: takes no pointers; the calling process.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) })
        .map_err(Error::call("setpriority"))?;
    // The kernel ignores CPUs that do not exist or are not in the control group.
    sched_setaffinity(Pid::from_raw(0), &all).map_err(Error::call("sched_setaffinity"))
}

/// Creates a timer on the calling thread's CPU time that lowers its priority when it expires.
fn watch_budget() -> Result<libc::timer_t> {
    // SAFETY: the handler does one system call.
    unsafe { signal_hook::low_level::register(libc::SIGXCPU, || drop(lower())) }
        .map_err(Error::call("catch SIGXCPU"))?;
    let mut set = SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGXCPU);
    // The parent process may have blocked it.
    pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&set), None)
        .map_err(Error::call("unblock SIGXCPU"))?;
    // Only a privileged process may raise a hard limit that it has inherited.
    setrlimit(Resource::RLIMIT_RTTIME, RLIM_INFINITY, RLIM_INFINITY)
        .map_err(Error::call("lift RLIMIT_RTTIME"))?;

    // SAFETY: all zeroes is a valid record; its fields are set below.
    let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGXCPU;
    // SAFETY: takes nothing.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer = ptr::null_mut();
    // SAFETY: a complete record, and room for the timer's id.
    check(unsafe { libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &mut event, &mut timer) })
        .map_err(Error::call("timer_create"))?;
    Ok(timer)
}

/// Threads inherit the priority; processes choose their own.
fn raise() -> Result<()> {
    schedule(libc::SCHED_FIFO, PRIORITY).map_err(Error::call("sched_setscheduler"))
}

/// Async-signal-safe (signal-safety(7)): one system call.
fn lower() -> io::Result<()> {
    schedule(libc::SCHED_OTHER, 0)
}

fn schedule(policy: i32, priority: i32) -> io::Result<()> {
    // The system call itself: musl's function does nothing.
    // SAFETY: the kernel's sched_param is one int; 0 is the calling thread.
    check(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) })
}

fn check(result: impl Into<i64>) -> io::Result<()> {
    if result.into() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nix::sys::resource::getrlimit;

    use super::*;

    const BUDGET: Duration = Duration::from_millis(25);
    const LIMIT: Resource = Resource::RLIMIT_RTTIME;
    /// With CONFIG_HZ=100.
    const SLOWEST_TICK: Duration = Duration::from_millis(10);

    /// CPU time of the calling thread.
    fn cpu_time() -> Duration {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
        now.expect("the clock").into()
    }

    fn policy() -> i32 {
        // SAFETY: takes no pointers; the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// Runs the test on a thread of its own, with which the priority ends.
    fn isolated(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().expect("the thread of the test");
    }

    #[test]
    fn a_thread_that_used_its_budget_up_is_ordinary_until_the_next_period() {
        isolated(|| {
            // Without the right to a real-time priority it is ordinary from the beginning.
            let raised = schedule(libc::SCHED_FIFO, PRIORITY);
            let has_right = raised.and_then(|()| lower()).is_ok();
            let mut before = cpu_time();
            let mut priority = Priority::take(BUDGET);
            let mut used = Vec::new();
            for _ in 0..5 {
                let first = if has_right { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
                assert_eq!(policy(), first);
                let start = Instant::now();
                while policy() != libc::SCHED_OTHER {
                    assert!(start.elapsed() < Duration::from_secs(60), "it is never lowered");
                }
                used.push(cpu_time() - before);
                before = cpu_time();
                priority.renew();
            }
            // The kernel counts as used what its own host gave to others: that makes some of them
            // longer.
            let least = *used.iter().min().expect("periods");
            assert!(!has_right || (BUDGET..BUDGET + 2 * SLOWEST_TICK).contains(&least), "{used:?}");
        });
    }

    /// It never waits at its real-time priority. The kernel would kill the whole test program.
    #[test]
    fn a_thread_that_uses_every_budget_up_lives_on() {
        isolated(|| {
            // Refused under a hard limit.
            let is_limited = setrlimit(LIMIT, 1_000_000, RLIM_INFINITY).is_err();
            let has_right = !is_limited && raise().is_ok() && lower().is_ok();
            let mut priority = Priority::take(BUDGET);
            let first = if has_right { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
            let mut start = cpu_time();
            for _ in 0..60 {
                assert_eq!(policy(), first);
                while policy() == libc::SCHED_FIFO {
                    assert!(cpu_time() - start < Duration::from_secs(60), "it is never lowered");
                }
                std::thread::sleep(Duration::from_millis(1));
                start = cpu_time();
                priority.renew();
            }
            let unlimited = getrlimit(LIMIT).expect("limits") == (RLIM_INFINITY, RLIM_INFINITY);
            assert!(is_limited || unlimited);
        });
    }
}
