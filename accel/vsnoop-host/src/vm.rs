//! The process of the VM behind a tap, and its run time since the last sample.

use std::time::{Duration, Instant};

use vsnoop_hold::{RunTime, Threads};

use crate::system::holder::{self, Holder};
use crate::system::process;
use crate::system::vcpu::{self, Sampled, Vcpu};

/// Interval of searches through all processes, and through descriptors and threads of the VM's.
const SEARCH_PERIOD: Duration = Duration::from_secs(2);
/// Interval of searches while a process without vCPUs holds the tap: it may have passed the tap on.
const SEARCH_AGAIN: Duration = Duration::from_secs(10);

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
    holder: Option<Holder>,
    searched_at: Option<Instant>,
    /// Those of the tap, at the last search: the process may have many others.
    descriptors: Vec<i32>,
    sampled: Sampled,
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
            holder: None,
            searched_at: None,
            descriptors: Vec::new(),
            sampled: Sampled::default(),
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
        let Some(pid) = self.holder.as_ref().map(|holder| holder.process.pid) else {
            // No process holds the tap.
            return RunTime::wall(elapsed);
        };
        self.list_its_own(pid);
        let before = std::mem::replace(&mut self.threads, self.sampled.sample());
        // After the threads: a VM that sleeps had read what was in its ring before.
        let are_empty = process::rings_are_empty(pid, &self.tap, self.netns, &self.descriptors);
        RunTime::between(&before, &mut self.threads, are_empty, elapsed)
    }

    /// Time that the VM waited for a CPU since the last call, ns: its vCPU that waited longest, and
    /// all threads of its process together. None if its vCPU threads are unknown.
    pub fn waited(&mut self) -> Option<(u64, u64)> {
        self.find_process();
        let pid = self.holder.as_ref()?.process.pid;
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

    fn list_its_own(&mut self, pid: i32) {
        let is_due = is_due(self.listed_at, SEARCH_PERIOD);
        if is_due {
            self.listed_at = Some(Instant::now());
            self.descriptors = process::descriptors(pid, &self.tap).collect();
        }
        if is_due || self.sampled.is_outdated(&self.threads) {
            self.sampled = Sampled::list(pid);
        }
    }

    fn find_process(&mut self) {
        let is_alive = |holder: &Holder| holder.process.is_alive();
        self.holder = self.holder.take().filter(is_alive);
        let period = match &self.holder {
            Some(holder) if holder.evidence.has_vcpus && !self.descriptors.is_empty() => return,
            Some(_) => SEARCH_AGAIN,
            None => SEARCH_PERIOD,
        };
        if !is_due(self.searched_at, period) {
            return;
        }
        self.searched_at = Some(Instant::now());
        let found = holder::of_tap(&self.tap, self.netns);
        let process = |holder: &Option<Holder>| holder.as_ref().map(|it| it.process.clone());
        if process(&found) != process(&self.holder) {
            self.listed_at = None;
            self.threads = Threads::default();
            self.waits = None;
        }
        self.holder = found;
    }
}

/// Is a search due, the last of which was then?
fn is_due(last: Option<Instant>, period: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= period)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use nix::sched::{CloneFlags, unshare};
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use vsnoop_netdev::tap::{Tap, TapOptions};

    use super::*;

    /// Reads the tap until it is dropped.
    struct Reader(Child);

    impl Reader {
        fn start(tap: &Tap) -> Self {
            let fd = tap.as_fd().as_raw_fd();
            let mut cat = Command::new("cat");
            cat.stdin(Stdio::null()).stdout(Stdio::null());
            // SAFETY: between fork and exec there is one system call. It makes a descriptor that
            // exec does not close.
            unsafe { cat.pre_exec(move || Ok(nix::unistd::dup2_stdin(borrowed(fd))?)) };
            Self(cat.spawn().expect("cat"))
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    fn borrowed(fd: i32) -> std::os::fd::BorrowedFd<'static> {
        // SAFETY: the descriptor is open in the child, which was forked from its owner.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
    }

    impl Drop for Reader {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Time on the clock would have it reset after 10 minutes.
    #[test]
    fn a_stopped_reader_has_no_run_time_though_another_process_keeps_the_descriptor() {
        // SAFETY: no arguments, cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: needs root");
            return;
        }
        let test = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            let netns = std::fs::metadata("/proc/thread-self/ns/net").expect("asked").ino();
            let options = TapOptions { nonblocking: false, ..TapOptions::default() };
            // This process keeps the descriptor, and has the lower process id.
            let tap = Tap::open("reads0", &options).expect("a tap");
            let reader = Reader::start(&tap);
            let found = || holder::of_tap("reads0", netns).map(|found| found.process.pid);
            until("the reader is found", || found() == Some(reader.pid()));
            kill(Pid::from_raw(reader.pid()), Signal::SIGSTOP).expect("stopped");
            until("it has stopped", || Sampled::list(reader.pid()).sample().stopped);
            let mut vm = Vm::behind("reads0", netns);
            let second = Duration::from_secs(1);
            vm.run_time(second);
            assert_eq!(vm.run_time(second), RunTime::NONE);
        });
        test.join().expect("the test");
    }
}
