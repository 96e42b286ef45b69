//! The process of the VM behind a tap, and its run time since the last sample.

use std::time::{Duration, Instant};

use vsnoop_hold::{RunTime, Threads};

use crate::system::process::{self, Process};
use crate::system::vcpu::{self, Vcpu};

/// Interval of searches through all processes, and through the descriptors of the VM's.
const SEARCH_PERIOD: Duration = Duration::from_secs(2);

/// How long the threads of a VM have waited for a CPU.
#[derive(Debug)]
struct Waits {
    at: Instant,
    vcpus: Vec<Vcpu>,
    process_ns: u64,
}

#[derive(Debug)]
pub struct Vm {
    /// The tap's present name, and the inode of its network namespace.
    tap: String,
    netns: u64,
    process: Option<Process>,
    searched_at: Option<Instant>,
    /// Those of the tap, at the last search: the process may have many others.
    descriptors: Vec<i32>,
    listed_at: Option<Instant>,
    threads: Threads,
    /// The last sample of its waits.
    waits: Option<Waits>,
}

impl Vm {
    pub fn behind(tap: &str, netns: u64) -> Self {
        let tap = tap.to_owned();
        Self {
            tap,
            netns,
            process: None,
            searched_at: None,
            descriptors: Vec::new(),
            listed_at: None,
            threads: Threads::default(),
            waits: None,
        }
    }

    pub fn tap(&self) -> &str {
        &self.tap
    }

    pub fn tap_is_called(&mut self, name: String) {
        self.tap = name;
        self.searched_at = None;
        self.listed_at = None;
    }

    /// Discards the last sample: the next call starts a new period.
    pub fn forget(&mut self) {
        self.threads = Threads::default();
    }

    /// Run time of the VM since the last sample, `elapsed` ago.
    pub fn run_time(&mut self, elapsed: Duration) -> RunTime {
        self.find_process();
        let Some(pid) = self.process.as_ref().map(|process| process.pid) else {
            // No process holds the tap.
            return RunTime::wall(elapsed);
        };
        let now = vcpu::sample(pid);
        let before = std::mem::replace(&mut self.threads, now);
        self.list_descriptors(pid);
        // After the threads: a VM that sleeps had read what was in its ring before.
        let are_empty = process::rings_are_empty(pid, &self.tap, self.netns, &self.descriptors);
        RunTime::between(&before, &self.threads, are_empty, elapsed)
    }

    /// Time that the VM waited for a CPU since the last call, ns: its vCPU that waited longest, and
    /// all threads of its process together. None if its vCPU threads are unknown.
    pub fn waited(&mut self) -> Option<(u64, u64)> {
        self.find_process();
        let pid = self.process.as_ref()?.pid;
        let now = Waits {
            at: Instant::now(),
            vcpus: vcpu::of_process(pid),
            process_ns: vcpu::waits_of_process_ns(pid),
        };
        let elapsed = |before: &Waits| now.at.duration_since(before.at).as_nanos() as u64;
        let between = |before: &Waits| {
            let vcpu_ns = vcpu::longest_wait_ns(&before.vcpus, &now.vcpus, elapsed(before));
            (vcpu_ns, now.process_ns.saturating_sub(before.process_ns).max(vcpu_ns))
        };
        let are_known = |before: &&Waits| !before.vcpus.is_empty() && !now.vcpus.is_empty();
        let waited = self.waits.as_ref().filter(are_known).map(between);
        self.waits = Some(now);
        waited
    }

    fn list_descriptors(&mut self, pid: i32) {
        if is_due(self.listed_at) {
            self.listed_at = Some(Instant::now());
            self.descriptors = process::descriptors(pid, &self.tap).collect();
        }
    }

    fn find_process(&mut self) {
        if self.process.as_ref().is_some_and(Process::is_alive) {
            return;
        }
        self.process = None;
        if is_due(self.searched_at) {
            self.searched_at = Some(Instant::now());
            self.process = process::holding_tap(&self.tap, self.netns);
            self.listed_at = None;
            self.threads = Threads::default();
        }
    }
}

/// Is a search due, the last of which was then?
fn is_due(last: Option<Instant>) -> bool {
    last.is_none_or(|last| last.elapsed() >= SEARCH_PERIOD)
}
