//! The vCPU threads of a VM, and the time that they run and wait to run.
//!
//! Monitors name them: QEMU "CPU 0/KVM" and "CPU 0/TCG", Firecracker "fc_vcpu 0", cloud-hypervisor
//! "vcpu0", crosvm "crosvm_vcpu0". The times come from /proc/PID/task/TID/schedstat: nanoseconds on
//! a CPU, nanoseconds on a run queue, and how many times it got a CPU. A wait is added when it
//! ends. Whether a thread that a cgroup's quota throttles counts as waiting depends on the kernel,
//! so the quota's own count is read as well.

use std::fs;

use vsnoop_hold::{Threads, Tick};

use super::cgroup::{self, Quota};
use super::process::Stat;

/// One vCPU thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Vcpu {
    pub tid: i32,
    pub name: String,
    pub state: char,
    /// SCHED_OTHER, SCHED_RR, ... as text.
    pub policy: String,
    /// The CPUs that it may run on, as in "0-3".
    pub affinity: String,
    pub run_ns: u64,
    pub wait_ns: u64,
    pub quota: Option<Quota>,
}

/// The vCPU threads of a process; empty if it is no VM.
pub fn of_process(pid: i32) -> Vec<Vcpu> {
    tids(pid).filter_map(|tid| read(pid, tid)).collect()
}

/// Has the process a vCPU thread?
pub(super) fn has_any(pid: i32) -> bool {
    tids(pid).any(|tid| name(pid, tid).is_some_and(|name| is_vcpu(&name)))
}

/// Shares of the time between two samples of a VM's vCPU threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Its busiest vCPU ran.
    pub ran: f64,
    /// The vCPU that waited longest waited for a CPU.
    pub waited: f64,
    /// A quota throttled it; part of `waited` on some kernels.
    pub throttled: f64,
}

impl Shares {
    /// The share that early acknowledgement could hide.
    pub fn held_up(self) -> f64 {
        self.waited.max(self.throttled)
    }
}

/// Shares from `before` to `now`, `elapsed_ns` later.
pub fn shares(before: &[Vcpu], now: &[Vcpu], elapsed_ns: u64) -> Shares {
    let mut shares = Shares::default();
    let share = |grown_ns: u64| (grown_ns as f64 / elapsed_ns.max(1) as f64).min(1.0);
    for vcpu in now {
        let Some(earlier) = before.iter().find(|earlier| earlier.tid == vcpu.tid) else { continue };
        shares.ran = shares.ran.max(share(vcpu.run_ns.saturating_sub(earlier.run_ns)));
        shares.waited = shares.waited.max(share(vcpu.wait_ns.saturating_sub(earlier.wait_ns)));
        let throttled_ns = |vcpu: &Vcpu| vcpu.quota.map_or(0, |quota| quota.throttled_ns);
        let throttled_ns = throttled_ns(vcpu).saturating_sub(throttled_ns(earlier));
        shares.throttled = shares.throttled.max(share(throttled_ns));
    }
    shares
}

/// Time that the vCPU which waited longest waited for a CPU between two samples, ns.
pub fn longest_wait_ns(before: &[Vcpu], now: &[Vcpu], elapsed_ns: u64) -> u64 {
    (shares(before, now, elapsed_ns).held_up() * elapsed_ns as f64) as u64
}

/// Time that all threads of a process have waited for a CPU together, ns: of the waits that have
/// ended, and of those threads that have not.
pub fn waits_of_process_ns(pid: i32) -> u64 {
    tids(pid).filter_map(|tid| schedstat(pid, tid)).map(|times| times.wait_ns).sum()
}

/// The threads of a process that are to be sampled. To list them takes longer than a sample.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    pid: i32,
    tids: Vec<i32>,
    are_vcpus: bool,
}

impl Sampled {
    /// The vCPU threads of a process, or all its threads if it has none.
    pub fn list(pid: i32) -> Self {
        let all: Vec<i32> = tids(pid).collect();
        let is_vcpu = |tid: &&i32| name(pid, **tid).is_some_and(|name| is_vcpu(&name));
        let vcpus: Vec<i32> = all.iter().filter(is_vcpu).copied().collect();
        let are_vcpus = !vcpus.is_empty();
        Self { pid, tids: if are_vcpus { vcpus } else { all }, are_vcpus }
    }

    /// Is a thread perhaps missing? `last`: their last sample. A thread that has ended is not in
    /// it, and a process may begin its vCPU threads later.
    pub fn is_outdated(&self, last: &Threads) -> bool {
        !self.are_vcpus || last.ticks.len() < self.tids.len()
    }

    /// Those that have ended are left out.
    pub fn sample(&self) -> Threads {
        let Self { pid, ref tids, are_vcpus } = *self;
        let ticks = tids.iter().filter_map(|tid| tick(pid, *tid)).collect();
        let stat = Stat::read(&format!("/proc/{pid}/stat"));
        let stopped = stat.is_some_and(|stat| matches!(stat.state, 'T' | 't'));
        Threads { are_vcpus, ticks, stopped, ..Threads::default() }
    }
}

fn tick(pid: i32, tid: i32) -> Option<Tick> {
    let state = Stat::read(&format!("/proc/{pid}/task/{tid}/stat"))?.state;
    let Times { run_ns, wait_ns, .. } = schedstat(pid, tid)?;
    Some(Tick { tid, state, run_ns, wait_ns })
}

pub(super) fn tids(pid: i32) -> impl Iterator<Item = i32> {
    fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name(pid: i32, tid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"))
        .ok()
        .map(|name| name.trim().to_owned())
}

fn read(pid: i32, tid: i32) -> Option<Vcpu> {
    let name = name(pid, tid).filter(|name| is_vcpu(name))?;
    let stat = Stat::read(&format!("/proc/{pid}/task/{tid}/stat"))?;
    let Times { run_ns, wait_ns, .. } = schedstat(pid, tid)?;
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let affinity = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Some(Vcpu {
        tid,
        name,
        state: stat.state,
        policy: policy(stat.policy, stat.realtime_priority),
        affinity: affinity.unwrap_or("").trim().to_owned(),
        run_ns,
        wait_ns,
        quota: cgroup::quota(pid, tid),
    })
}

fn is_vcpu(name: &str) -> bool {
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (name.starts_with("CPU ") && name.contains('/'))
        || name == "ALL CPUs/TCG"
        || ["vcpu", "vcpu-", "fc_vcpu ", "fc_vcpu", "crosvm_vcpu", "CPU-", "EMT-"]
            .iter()
            .any(|prefix| numbered(prefix))
}

/// The scheduler's counters of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub run_ns: u64,
    /// Sum of the waits that have ended.
    pub wait_ns: u64,
    /// How many times it got a CPU.
    pub turns: u64,
}

pub fn schedstat(pid: i32, tid: i32) -> Option<Times> {
    parse_schedstat(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?)
}

fn parse_schedstat(text: &str) -> Option<Times> {
    let mut fields = text.split_whitespace().map_while(|field| field.parse().ok());
    Some(Times { run_ns: fields.next()?, wait_ns: fields.next()?, turns: fields.next()? })
}

fn policy(policy: i32, priority: u32) -> String {
    match policy {
        libc::SCHED_OTHER => "other".into(),
        libc::SCHED_FIFO => format!("fifo {priority}"),
        libc::SCHED_RR => format!("rr {priority}"),
        libc::SCHED_BATCH => "batch".into(),
        libc::SCHED_IDLE => "idle".into(),
        libc::SCHED_DEADLINE => "deadline".into(),
        other => format!("policy {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vcpu_threads_of_known_monitors_are_recognised() {
        for name in
            ["CPU 0/KVM", "CPU 12/TCG", "ALL CPUs/TCG", "fc_vcpu 0", "vcpu3", "crosvm_vcpu1"]
        {
            assert!(is_vcpu(name), "{name}");
        }
    }

    #[test]
    fn other_threads_of_a_monitor_are_not_vcpus() {
        for name in
            ["qemu-system-x86", "IO iothread1", "vhost-4711", "vcpu_mgr", "vcpu", "worker", "CPU"]
        {
            assert!(!is_vcpu(name), "{name}");
        }
    }

    #[test]
    fn the_vcpu_that_waited_longest_gives_the_share() {
        let vcpu = |tid, run_ns, wait_ns| Vcpu {
            tid,
            name: "vcpu0".into(),
            state: 'R',
            policy: "other".into(),
            affinity: "0".into(),
            run_ns,
            wait_ns,
            quota: Some(Quota { cpus: 0.5, period_us: 100_000, throttled_ns: run_ns }),
        };
        let before = [vcpu(1, 0, 0), vcpu(2, 0, 0)];
        let now = [vcpu(1, 600, 100), vcpu(2, 100, 300), vcpu(3, 1000, 1000)];
        let shares = shares(&before, &now, 1000);
        assert_eq!(shares, Shares { ran: 0.6, waited: 0.3, throttled: 0.6 });
        assert_eq!(shares.held_up(), 0.6);
    }

    #[test]
    fn schedstat_gives_run_and_wait_times() {
        let times = Times { run_ns: 1_280_891, wait_ns: 72_117, turns: 3 };
        assert_eq!(parse_schedstat("1280891 72117 3\n"), Some(times));
        assert_eq!(parse_schedstat("x"), None);
    }
}
