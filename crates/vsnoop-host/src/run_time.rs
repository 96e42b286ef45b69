//! Run time of a VM, in which it could answer, from samples of its threads.
//!
//! A VM has run if some vCPU has run and none wanted to run and could not: the vCPU that takes the
//! interrupt may be the one that starves. If the vCPU threads are not known by name, or no process
//! reads the tap, the run time is unknown. Time on the clock then counts instead, unless the
//! threads show that the VM could not have run; and a sixth of it while all threads sleep, because
//! the VM may be idle, or paused by its VMM.

use std::time::Duration;

use crate::system::vcpu::{Threads, Tick};

/// A vCPU, or a process, that ran for less in a period counts as not run.
const RAN: Duration = Duration::from_micros(100);
/// Time in which a whole process slept counts as this part.
const ASLEEP_PART: u32 = 6;

/// Run time of a VM in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunTime {
    /// It did not run, or could not have read its ring.
    None,
    /// It ran for `ns`.
    Ran { ns: u64 },
    /// Unknown; `ns` of the clock passed.
    Wall { ns: u64 },
}

impl RunTime {
    /// Run time between two samples of the same process, `elapsed` apart.
    pub fn between(before: &Threads, now: &Threads, elapsed: Duration) -> Self {
        match (before.ticks.is_empty(), now.ticks.is_empty()) {
            // /proc has no times; a stopped process does nothing.
            (_, true) if now.stopped => Self::None,
            (_, true) => Self::wall(elapsed),
            (true, false) => Self::None,
            (false, false) if now.are_vcpus => of_vcpus(&before.ticks, &now.ticks),
            (false, false) => of_process(&before.ticks, &now.ticks, elapsed),
        }
    }

    /// Only the time on the clock is known.
    pub fn wall(elapsed: Duration) -> Self {
        Self::Wall { ns: elapsed.as_nanos() as u64 }
    }
}

fn of_vcpus(before: &[Tick], now: &[Tick]) -> RunTime {
    let least_run_ns = RAN.as_nanos() as u64;
    let mut least_ns = None;
    for tick in now {
        let Some(earlier) = before.iter().find(|earlier| earlier.tid == tick.tid) else {
            return RunTime::None;
        };
        let grown_ns = tick.run_ns.saturating_sub(earlier.run_ns);
        if grown_ns >= least_run_ns {
            least_ns = Some(least_ns.map_or(grown_ns, |least: u64| least.min(grown_ns)));
        } else if tick.state != 'S' {
            return RunTime::None;
        }
    }
    least_ns.map_or(RunTime::None, |ns| RunTime::Ran { ns })
}

/// From all threads of a process, if the vCPU threads are unknown.
fn of_process(before: &[Tick], now: &[Tick], elapsed: Duration) -> RunTime {
    let grown_ns = |tick: &Tick| {
        let earlier = before.iter().find(|earlier| earlier.tid == tick.tid);
        tick.run_ns.saturating_sub(earlier.map_or(0, |earlier| earlier.run_ns))
    };
    if now.iter().map(grown_ns).sum::<u64>() >= RAN.as_nanos() as u64 {
        RunTime::wall(elapsed)
    } else if now.iter().any(|tick| matches!(tick.state, 'R' | 'D' | 'T' | 't')) {
        // A thread starves, waits for a disk, or is stopped.
        RunTime::None
    } else {
        RunTime::wall(elapsed / ASLEEP_PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PERIOD: Duration = Duration::from_millis(240);

    fn tick(tid: i32, state: char, run_ns: u64) -> Tick {
        Tick { tid, state, run_ns }
    }

    fn threads(are_vcpus: bool, ticks: &[Tick]) -> Threads {
        Threads { are_vcpus, ticks: ticks.to_vec(), stopped: false }
    }

    #[test]
    fn a_halted_vcpu_does_not_excuse_but_a_starved_one_does() {
        let before = threads(true, &[tick(1, 'R', 0), tick(2, 'S', 0)]);
        let run_time = |first: Tick, second: Tick| {
            RunTime::between(&before, &threads(true, &[first, second]), PERIOD)
        };
        let ran = tick(1, 'R', 5 * MS);
        assert_eq!(run_time(ran, tick(2, 'S', 0)), RunTime::Ran { ns: 5 * MS });
        for state in ['R', 'T', 'D'] {
            assert_eq!(run_time(ran, tick(2, state, 0)), RunTime::None, "{state}");
        }
        assert_eq!(run_time(tick(1, 'S', 0), tick(2, 'S', 0)), RunTime::None);
    }

    #[test]
    fn the_vcpu_that_ran_least_counts() {
        let before = threads(true, &[tick(1, 'R', 0), tick(2, 'R', 0)]);
        let now = threads(true, &[tick(1, 'R', 100 * MS), tick(2, 'R', 3 * MS)]);
        assert_eq!(RunTime::between(&before, &now, PERIOD), RunTime::Ran { ns: 3 * MS });
    }

    #[test]
    fn a_process_without_known_vcpus_has_the_time_in_which_it_did_anything() {
        let before = threads(false, &[tick(1, 'S', 0), tick(2, 'S', 7 * MS)]);
        let run_time = |state, run_ns| {
            let now = threads(false, &[tick(1, 'S', 0), tick(2, state, run_ns)]);
            RunTime::between(&before, &now, PERIOD)
        };
        assert_eq!(run_time('S', 8 * MS), RunTime::Wall { ns: 240 * MS });
        assert_eq!(run_time('R', 8 * MS), RunTime::Wall { ns: 240 * MS });
        assert_eq!(run_time('S', 7 * MS), RunTime::Wall { ns: 40 * MS });
        for state in ['R', 'T', 'D'] {
            assert_eq!(run_time(state, 7 * MS), RunTime::None, "{state}");
        }
        // A new thread has run, an ended one has not.
        let now = threads(false, &[tick(1, 'S', 0), tick(3, 'S', MS)]);
        assert_eq!(RunTime::between(&before, &now, PERIOD), RunTime::Wall { ns: 240 * MS });
        let now = threads(false, &[tick(1, 'S', 0)]);
        assert_eq!(RunTime::between(&before, &now, PERIOD), RunTime::Wall { ns: 40 * MS });
    }

    #[test]
    fn the_first_look_says_nothing_and_unreadable_threads_leave_the_clock() {
        let nothing = threads(false, &[]);
        let known = threads(true, &[tick(1, 'R', 5 * MS)]);
        assert_eq!(RunTime::between(&nothing, &known, PERIOD), RunTime::None);
        assert_eq!(RunTime::between(&known, &nothing, PERIOD), RunTime::Wall { ns: 240 * MS });
        let stopped = Threads { stopped: true, ..nothing };
        assert_eq!(RunTime::between(&known, &stopped, PERIOD), RunTime::None);
    }
}
