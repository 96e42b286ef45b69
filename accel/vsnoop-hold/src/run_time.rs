//! Run time of a VM, in which it could answer, from samples of its threads.
//!
//! Two times are told apart. *Run time* is for timers: the VM ran, or slept because it had nothing
//! to do. A halted vCPU whose ring is empty has taken all that it was handed. *Live time* is for
//! giving up: of the time in which no thread ran at all a sixth counts, because a monitor that
//! pauses its VM looks the same.
//!
//! A vCPU that is halted had the whole period, except for what it waited for a CPU; one that runs
//! had what it ran. The vCPU that had least counts, and a VM has no time while one of them wants to
//! run and cannot: that may be the one that takes the interrupt. If the vCPU threads are not known
//! by name, all threads of the process are looked at; if no process reads the tap, the clock
//! counts.
//!
//! A VM has no time while its ring has something: it could not have read that. One that sleeps
//! beside it for long has lost the wake-up, or is paused by its monitor. Only another frame wakes
//! the first, and without vsnoop a sender's retransmission does: timers count from then on.

use std::time::Duration;

/// A vCPU, or a process, that ran for less in a period counts as not run.
const RAN: Duration = Duration::from_micros(100);
/// Time in which nothing ran is this part of it as live time.
const ASLEEP_PART: u64 = 6;
/// A VM that sleeps beside an unread ring for longer does not wake for what is in it.
const WAKES: Duration = Duration::from_secs(1);

/// Sample of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    pub tid: i32,
    /// State in /proc: 'R' runs or waits for a CPU, 'T' is stopped, 'S' is a halted vCPU.
    pub state: char,
    pub run_ns: u64,
    /// Time on a run queue, of the waits that have ended.
    pub wait_ns: u64,
}

/// Sample of the threads of a monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// `ticks` has the vCPU threads; else none is known by its name, and it has all threads.
    pub are_vcpus: bool,
    /// Empty if /proc has no times.
    pub ticks: Vec<Tick>,
    /// The process is stopped (SIGSTOP, a debugger).
    pub stopped: bool,
    /// For how long all of them have slept beside an unread ring: [`RunTime::between`] sets it.
    pub slept: Duration,
}

/// Time of a VM in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// It could answer: timers count this.
    pub ns: u64,
    /// Live time: giving up counts this. At most `ns`.
    pub live_ns: u64,
}

impl RunTime {
    /// It did not run, or could not have read its ring.
    pub const NONE: Self = Self { ns: 0, live_ns: 0 };

    /// Time between two samples of the same process, `elapsed` apart. `rings_are_empty`: of the
    /// tap, at the later one; `None` if that is not known.
    pub fn between(
        before: &Threads,
        now: &mut Threads,
        rings_are_empty: Option<bool>,
        elapsed: Duration,
    ) -> Self {
        if rings_are_empty == Some(false) {
            return beside_unread_ring(before, now, elapsed);
        }
        match (before.ticks.is_empty(), now.ticks.is_empty()) {
            // /proc has no times; a stopped process does nothing.
            (_, true) if now.stopped => Self::NONE,
            (_, true) => Self::wall(elapsed),
            (true, false) => Self::NONE,
            (false, false) if now.are_vcpus => of_vcpus(&before.ticks, &now.ticks, elapsed),
            (false, false) => of_process(&before.ticks, &now.ticks, elapsed),
        }
    }

    /// Only the time on the clock is known.
    pub fn wall(elapsed: Duration) -> Self {
        let ns = nanoseconds(elapsed);
        Self { ns, live_ns: ns }
    }

    /// All threads slept for `ns`.
    fn asleep(ns: u64) -> Self {
        Self { ns, live_ns: ns / ASLEEP_PART }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Giving up does not count it: a VM that is paused looks the same.
fn beside_unread_ring(before: &Threads, now: &mut Threads, elapsed: Duration) -> RunTime {
    let sleeps = |threads: &Threads| {
        !threads.ticks.is_empty() && threads.ticks.iter().all(|tick| tick.state == 'S')
    };
    if !sleeps(before) || !sleeps(now) {
        return RunTime::NONE;
    }
    now.slept = before.slept + elapsed;
    if before.slept < WAKES {
        return RunTime::NONE;
    }
    RunTime { ns: nanoseconds(elapsed), live_ns: 0 }
}

fn of_vcpus(before: &[Tick], now: &[Tick], elapsed: Duration) -> RunTime {
    let (mut least_ns, mut has_run) = (nanoseconds(elapsed), false);
    for tick in now {
        let Some(earlier) = before.iter().find(|earlier| earlier.tid == tick.tid) else {
            return RunTime::NONE;
        };
        let ran_ns = tick.run_ns.saturating_sub(earlier.run_ns);
        let waited_ns = tick.wait_ns.saturating_sub(earlier.wait_ns);
        let had_ns = match tick.state {
            'S' => nanoseconds(elapsed).saturating_sub(waited_ns),
            _ if ran_ns >= nanoseconds(RAN) => ran_ns,
            _ => return RunTime::NONE,
        };
        least_ns = least_ns.min(had_ns);
        has_run |= ran_ns > 0;
    }
    if has_run { RunTime { ns: least_ns, live_ns: least_ns } } else { RunTime::asleep(least_ns) }
}

/// From all threads of a process, if the vCPU threads are unknown.
fn of_process(before: &[Tick], now: &[Tick], elapsed: Duration) -> RunTime {
    let ran_ns = |tick: &Tick| {
        let earlier = before.iter().find(|earlier| earlier.tid == tick.tid);
        tick.run_ns.saturating_sub(earlier.map_or(0, |earlier| earlier.run_ns))
    };
    if now.iter().map(ran_ns).sum::<u64>() >= nanoseconds(RAN) {
        RunTime::wall(elapsed)
    } else if now.iter().any(|tick| matches!(tick.state, 'R' | 'D' | 'T' | 't')) {
        // A thread starves, waits for a disk, or is stopped.
        RunTime::NONE
    } else {
        RunTime::asleep(nanoseconds(elapsed))
    }
}
