//! How busy the CPUs of the machine are, by all of its programs (/proc/stat, proc(5)).

use std::fs;

use anyhow::{Context, Result};

/// The name of a value of a sample.
pub const BUSY: &str = "cpus_busy_percent";

/// Times of all CPUs together since the machine has booted, in ticks of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTimes {
    idle: u64,
    all: u64,
}

impl CpuTimes {
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        parse(&text).context("/proc/stat has no line of all CPUs")
    }

    /// The share of the time between two readings in which CPUs were not idle; `None` within a
    /// tick.
    pub fn busy_percent_since(&self, before: &Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|ticks| *ticks > 0)?;
        let idle = self.idle.saturating_sub(before.idle).min(all);
        Some(100.0 * (all - idle) as f64 / all as f64)
    }
}

/// `cpu  user nice system idle iowait irq softirq steal guest guest_nice`: the time of guests is in
/// that of users.
fn parse(text: &str) -> Option<CpuTimes> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(CpuTimes { idle, all: ticks.iter().sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_a_guest_is_not_counted_twice() {
        let before = parse("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n").unwrap();
        assert_eq!(before, CpuTimes { idle: 80, all: 100 });
        let after = parse("cpu  20 0 15 75 10 0 25 5 5 0\n").unwrap();
        assert_eq!(after.busy_percent_since(&before), Some(90.0));
        assert_eq!(before.busy_percent_since(&before), None);
        assert_eq!(parse("intr 1 2 3\n"), None);
        assert!(CpuTimes::read().unwrap().all > 0);
    }
}
