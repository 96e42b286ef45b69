//! The process of the VM behind a tap, and its run time since the last sample.

use std::time::{Duration, Instant};

use crate::run_time::RunTime;
use crate::system::process::{self, Process};
use crate::system::vcpu::Threads;

/// Interval of searches through all processes.
const SEARCH_PERIOD: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Vm {
    /// The tap's present name, and the inode of its network namespace.
    tap: String,
    netns: u64,
    process: Option<Process>,
    searched_at: Option<Instant>,
    threads: Threads,
}

impl Vm {
    pub fn behind(tap: &str, netns: u64) -> Self {
        let tap = tap.to_owned();
        Self { tap, netns, process: None, searched_at: None, threads: Threads::default() }
    }

    pub fn tap(&self) -> &str {
        &self.tap
    }

    pub fn tap_is_called(&mut self, name: String) {
        self.tap = name;
        self.searched_at = None;
    }

    /// Discards the last sample: the next call starts a new period.
    pub fn forget(&mut self) {
        self.threads = Threads::default();
    }

    /// Run time of the VM since the last sample, `elapsed` ago.
    pub fn run_time(&mut self, elapsed: Duration) -> RunTime {
        self.find_process();
        let Some(process) = &self.process else {
            // No process holds the tap.
            return RunTime::wall(elapsed);
        };
        let now = Threads::of_process(process.pid);
        let before = std::mem::replace(&mut self.threads, now);
        if process::rings_are_empty(process.pid, &self.tap, self.netns) == Some(false) {
            return RunTime::None;
        }
        RunTime::between(&before, &self.threads, elapsed)
    }

    fn find_process(&mut self) {
        if self.process.as_ref().is_some_and(Process::is_alive) {
            return;
        }
        self.process = None;
        if self.searched_at.is_none_or(|searched| searched.elapsed() >= SEARCH_PERIOD) {
            self.searched_at = Some(Instant::now());
            self.process = process::holding_tap(&self.tap, self.netns);
            self.threads = Threads::default();
        }
    }
}
