//! The threads that run a VM's CPUs, and the time that they run and wait to run.
//!
//! Monitors name them: QEMU "CPU 0/KVM" and "CPU 0/TCG", Firecracker "fc_vcpu 0", cloud-hypervisor
//! "vcpu0", crosvm "crosvm_vcpu0". The times come from /proc/PID/task/TID/schedstat: nanoseconds on a
//! CPU, and nanoseconds on a run queue waiting for one. A thread that a cgroup's quota holds back may
//! or may not count as waiting, depending on the kernel, so the quota's own count is read as well.

use std::fs;

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

/// The vCPU threads of a process; empty when it is no VM.
pub fn of_process(pid: i32) -> Vec<Vcpu> {
    tids(pid).filter_map(|tid| read(pid, tid)).collect()
}

/// Sum of the time on a CPU of all vCPU threads, and whether one of them is not stopped.
///
/// `None` when the process has no vCPU threads: no VM stands behind it.
pub fn run_ns(pid: i32) -> Option<u64> {
    tids(pid)
        .filter(|tid| name(pid, *tid).is_some_and(|name| is_vcpu(&name)))
        .filter_map(|tid| schedstat(pid, tid))
        .map(|(run_ns, _)| run_ns)
        .reduce(|a, b| a + b)
}

fn tids(pid: i32) -> impl Iterator<Item = i32> {
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
    let (run_ns, wait_ns) = schedstat(pid, tid)?;
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

/// Nanoseconds on a CPU, and waiting for one.
fn schedstat(pid: i32, tid: i32) -> Option<(u64, u64)> {
    parse_schedstat(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?)
}

fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
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
    fn schedstat_gives_run_and_wait_times() {
        assert_eq!(parse_schedstat("1280891 72117 3\n"), Some((1_280_891, 72_117)));
        assert_eq!(parse_schedstat("x"), None);
    }
}
