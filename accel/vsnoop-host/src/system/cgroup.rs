//! Control groups, version 1 and 2: the directories of a process's groups; CPU quotas, the tightest
//! one up to the root, and the time for which they have throttled a thread's group.

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
    directories(&format!("/proc/{pid}/task/{tid}"), "cpu").iter().find_map(|group| {
        group.up_to_the_root().filter_map(of_directory).reduce(|a, b| Quota {
            throttled_ns: a.throttled_ns + b.throttled_ns,
            ..if a.cpus <= b.cpus { a } else { b }
        })
    })
}

/// A process's group of one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where the hierarchy is mounted, or the part of it that this process sees.
    pub mounted_at: PathBuf,
    pub directory: PathBuf,
    pub is_unified: bool,
}

impl Group {
    /// Its directory, and those of the groups above it.
    pub fn up_to_the_root(&self) -> impl Iterator<Item = &Path> {
        let is_below = |directory: &&Path| directory.starts_with(&self.mounted_at);
        self.directory.ancestors().take_while(is_below)
    }
}

/// The groups of a process, or thread, in the hierarchies that may have this controller. `process`:
/// its directory in /proc.
pub fn directories(process: &str, controller: &str) -> Vec<Group> {
    read(process, |controllers| controllers.split(',').any(|found| found == controller))
}

/// The groups of a process in all hierarchies.
pub fn all_directories(process: &str) -> Vec<Group> {
    read(process, |_| true)
}

fn read(process: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Group> {
    let groups = fs::read_to_string(format!("{process}/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    find(&groups, &mounts, is_wanted)
}

/// `is_wanted`: of the controllers of a hierarchy of version 1.
fn find(groups: &str, mounts: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Group> {
    let group = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_unified = controllers.is_empty();
        if !is_unified && !is_wanted(controllers) {
            return None;
        }
        let (root, point) = mounts.lines().find_map(|mount| hierarchy(mount, controllers))?;
        // In a container the mount shows only a part of the hierarchy.
        let path = Path::new(path).strip_prefix(root).or(Path::new(path).strip_prefix("/")).ok()?;
        let mounted_at = PathBuf::from(point);
        Some(Group { directory: mounted_at.join(path), mounted_at, is_unified })
    };
    groups.lines().filter_map(group).collect()
}

/// (root, mount point) of a line of mountinfo, if it is the hierarchy with these controllers. None:
/// that of version 2.
fn hierarchy<'a>(mount: &'a str, controllers: &str) -> Option<(&'a str, &'a str)> {
    let (left, right) = mount.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
    let has_all = || controllers.split(',').all(|it| options.split(',').any(|found| found == it));
    let wanted = match controllers.is_empty() {
        true => kind == "cgroup2",
        false => kind == "cgroup" && has_all(),
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
        let found = find(groups, mounts, |controllers| controllers.contains("cpu"));
        let group = |mounted_at: &str, below: &str, is_unified| Group {
            mounted_at: mounted_at.into(),
            directory: Path::new(mounted_at).join(below),
            is_unified,
        };
        let unified = group("/sys/fs/cgroup/unified", "vm", true);
        assert_eq!(found, [group("/sys/fs/cgroup/cpu", "vm/one", false), unified.clone()]);
        let above: Vec<_> = unified.up_to_the_root().collect();
        assert_eq!(above, ["/sys/fs/cgroup/unified/vm", "/sys/fs/cgroup/unified"].map(Path::new));
    }

    #[test]
    fn a_container_with_a_namespace_of_its_own_sees_its_own_group_at_the_root() {
        let mounts = "31 25 0:27 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n\
                      32 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        let found = find("1:name=systemd:/\n0::/\n", mounts, |_| true);
        let directories: Vec<_> = found.iter().map(|group| &*group.directory).collect();
        assert_eq!(directories, ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(Path::new));
    }
}
