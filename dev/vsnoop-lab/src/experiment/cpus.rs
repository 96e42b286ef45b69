//! How busy the CPUs of the machine are, by all of its programs (/proc/stat, proc(5)).

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// The name of a value of a sample.
pub const BUSY: &str = "cpus_busy_percent";

/// Times of all CPUs together since the machine has booted, in ticks of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTimes {
    count: u32,
    idle: u64,
    /// While a hypervisor ran other machines.
    stolen: u64,
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

    /// CPU time of all programs and interrupts between two readings that are `apart`: what was
    /// neither idle nor stolen. Those two the kernel measures, while it may count the others by
    /// which of them runs at a tick.
    pub fn used_since(&self, before: &Self, apart: Duration) -> Result<Duration> {
        let ticks_per_second = sysconf(SysconfVar::CLK_TCK).context("ask for the clock's ticks")?;
        let ticks_per_second = ticks_per_second.context("a clock without ticks")?;
        let unused = (self.idle + self.stolen).saturating_sub(before.idle + before.stolen);
        let unused = Duration::from_secs_f64(unused as f64 / ticks_per_second as f64);
        Ok((apart * self.count).saturating_sub(unused))
    }
}

/// `cpu  user nice system idle iowait irq softirq steal guest guest_nice`: the time of guests is in
/// that of users.
fn parse(text: &str) -> Option<CpuTimes> {
    let (all, each): (Vec<_>, Vec<_>) = text
        .lines()
        .filter_map(|line| line.strip_prefix("cpu"))
        .partition(|line| line.starts_with(' '));
    let ticks: Vec<u64> =
        all.first()?.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    Some(CpuTimes {
        count: each.len() as u32,
        idle: ticks.get(3)? + ticks.get(4)?,
        stolen: *ticks.get(7)?,
        all: ticks.iter().sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_a_guest_is_not_counted_twice() {
        let before = parse("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n").unwrap();
        assert_eq!(before, CpuTimes { count: 1, idle: 80, stolen: 0, all: 100 });
        let after = parse("cpu  20 0 15 75 10 0 25 5 5 0\n").unwrap();
        assert_eq!(after.busy_percent_since(&before), Some(90.0));
        assert_eq!(before.busy_percent_since(&before), None);
        assert_eq!(parse("intr 1 2 3\n"), None);
        assert!(CpuTimes::read().unwrap().all > 0);
    }

    #[test]
    fn what_is_neither_idle_nor_stolen_is_used() {
        let times = |idle, stolen| CpuTimes { count: 2, idle, stolen, all: 0 };
        let ticks = |count| {
            let per_second = sysconf(SysconfVar::CLK_TCK).unwrap().unwrap();
            Duration::from_secs(count) / per_second as u32
        };
        let used = times(150, 25).used_since(&times(100, 5), ticks(100)).unwrap();
        assert_eq!(used, ticks(200 - 50 - 20));
    }
}
