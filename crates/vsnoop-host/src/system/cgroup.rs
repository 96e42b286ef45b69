//! CPU quotas of cgroups, version 1 and 2: the tightest one up to the root, and the time for which
//! they have throttled a thread's group.

use std::fs;
use std::path::{Path, PathBuf};

/// A quota, and the time for which it throttled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quota {
    /// CPUs that the group may use at most: 0.25 is 50 ms in each 200 ms.
    pub cpus: f64,
    pub period_us: u64,
    /// Time for which the group, and its parents, were throttled so far.
    pub throttled_ns: u64,
}

/// The quota that binds a thread; `None` when there is none.
pub fn quota(pid: i32, tid: i32) -> Option<Quota> {
    let groups = fs::read_to_string(format!("/proc/{pid}/task/{tid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    group_directories(&groups, &mounts).into_iter().find_map(|(base, group)| {
        group
            .ancestors()
            .take_while(|directory| directory.starts_with(&base))
            .filter_map(of_directory)
            .reduce(|a, b| Quota {
                throttled_ns: a.throttled_ns + b.throttled_ns,
                ..if a.cpus <= b.cpus { a } else { b }
            })
    })
}

/// (mount point, directory of the group) for every hierarchy that may carry a CPU quota.
fn group_directories(groups: &str, mounts: &str) -> Vec<(PathBuf, PathBuf)> {
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let unified = controllers.is_empty();
            if !unified && !controllers.split(',').any(|controller| controller == "cpu") {
                return None;
            }
            let (root, point) = mounts.lines().find_map(|mount| hierarchy(mount, unified))?;
            // In a container the mount shows only a part of the hierarchy.
            let path =
                Path::new(path).strip_prefix(root).or(Path::new(path).strip_prefix("/")).ok()?;
            Some((PathBuf::from(point), Path::new(point).join(path)))
        })
        .collect()
}

/// (root, mount point) of a line of mountinfo, if it is the hierarchy that is looked for.
fn hierarchy(mount: &str, unified: bool) -> Option<(&str, &str)> {
    let (left, right) = mount.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
    let wanted = if unified {
        kind == "cgroup2"
    } else {
        kind == "cgroup" && options.split(',').any(|option| option == "cpu")
    };
    wanted.then_some((root, point))
}

fn of_directory(directory: &Path) -> Option<Quota> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<i64>().ok();
    let (quota_us, period_us) = match read("cpu.max") {
        Some(text) => parse_cpu_max(&text)?,
        None => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
    };
    if quota_us <= 0 || period_us <= 0 {
        return None;
    }
    Some(Quota {
        cpus: quota_us as f64 / period_us as f64,
        period_us: period_us as u64,
        throttled_ns: parse_throttled_ns(&read("cpu.stat").unwrap_or_default()),
    })
}

/// "max 100000" or "50000 200000"; `None` without a quota.
fn parse_cpu_max(text: &str) -> Option<(i64, i64)> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some((quota.parse().ok()?, period.parse().ok()?))
}

/// Version 2 counts in microseconds, version 1 in nanoseconds.
fn parse_throttled_ns(stat: &str) -> u64 {
    stat.lines()
        .find_map(|line| match line.split_once(' ')? {
            ("throttled_usec", value) => value.parse::<u64>().ok().map(|us| us * 1000),
            ("throttled_time", value) => value.parse().ok(),
            _ => None,
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_both_versions_are_understood() {
        assert_eq!(parse_cpu_max("50000 200000\n"), Some((50_000, 200_000)));
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_throttled_ns("nr_throttled 3\nthrottled_usec 1500\n"), 1_500_000);
        assert_eq!(parse_throttled_ns("nr_periods 9\nthrottled_time 1500\n"), 1500);
        assert_eq!(parse_throttled_ns(""), 0);
    }

    #[test]
    fn the_directory_of_a_group_is_found_in_both_hierarchies() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      31 25 0:27 /pod7 /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "3:cpu,cpuacct:/vm/one\n2:memory:/vm/one\n0::/pod7/vm\n";
        let found = group_directories(groups, mounts);
        assert_eq!(
            found,
            [
                ("/sys/fs/cgroup/cpu".into(), "/sys/fs/cgroup/cpu/vm/one".into()),
                ("/sys/fs/cgroup/unified".into(), "/sys/fs/cgroup/unified/vm".into()),
            ]
        );
    }
}
