//! The longest waits of vCPU threads for a CPU.
//!
//! The scheduler counts the sum of a thread's waits and their number. A thread that others
//! interrupt has many short waits between the long ones that its senders notice: a mean over a
//! second would hide those. So the counts are read often, and the longest mean between two readings
//! is kept.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use vsnoop_host::system::vcpu::{self, Times};

/// Between two readings: short beside a wait that matters, long beside the time that they take.
const INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub struct Waits(HashMap<i32, Wait>);

#[derive(Debug)]
struct Wait {
    last: Times,
    longest_ns: u64,
}

impl Waits {
    /// Watches threads, each as process and thread, for `seconds`; not at all if there are none.
    pub fn watch_threads(threads: &[(i32, i32)], seconds: f64) -> Self {
        let mut waits = Self::default();
        if threads.is_empty() {
            return waits;
        }
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        loop {
            for (pid, tid) in threads {
                if let Some(times) = vcpu::schedstat(*pid, *tid) {
                    waits.add(*tid, times);
                }
            }
            match end.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::sleep(left.min(INTERVAL)),
                _ => return waits,
            }
        }
    }

    /// `None` of a thread that got no CPU meanwhile.
    pub fn longest_ns(&self, tid: i32) -> Option<u64> {
        self.0.get(&tid).map(|wait| wait.longest_ns).filter(|longest_ns| *longest_ns > 0)
    }

    fn add(&mut self, tid: i32, now: Times) {
        let wait = self.0.entry(tid).or_insert(Wait { last: now, longest_ns: 0 });
        let waited_ns = now.wait_ns.saturating_sub(wait.last.wait_ns);
        let mean_ns = waited_ns.checked_div(now.turns.saturating_sub(wait.last.turns));
        wait.longest_ns = wait.longest_ns.max(mean_ns.unwrap_or(0));
        wait.last = now;
    }

    #[cfg(test)]
    pub fn from_readings(readings: &[(i32, u64, u64)]) -> Self {
        let mut waits = Self::default();
        for (tid, wait_ns, turns) in readings {
            waits.add(*tid, Times { run_ns: 0, wait_ns: *wait_ns, turns: *turns });
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_do_not_hide_a_long_one() {
        // 100 interruptions, a wait of 40 ms, 100 interruptions.
        let readings = [(0, 0), (100_000, 100), (40_100_000, 101), (40_200_000, 201)];
        let waits = Waits::from_readings(&readings.map(|(wait_ns, turns)| (7, wait_ns, turns)));
        assert_eq!(waits.longest_ns(7), Some(40_000_000));
    }

    #[test]
    fn a_thread_that_got_no_cpu_says_nothing() {
        assert_eq!(Waits::from_readings(&[(7, 5, 3), (7, 5, 3)]).longest_ns(7), None);
        assert_eq!(Waits::from_readings(&[(7, 5, 3)]).longest_ns(8), None);
    }

    #[test]
    fn what_was_before_the_first_reading_does_not_count() {
        assert_eq!(Waits::from_readings(&[(7, 900, 1), (7, 910, 2)]).longest_ns(7), Some(10));
    }
}
