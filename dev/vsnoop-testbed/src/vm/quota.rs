//! A CPU quota of threads, as clouds and Kubernetes give VMs: a share of every 100 ms.
//!
//! Threads are put into a control group of their own, of whichever version the host has for its CPU
//! controller. With version 2 a thread can leave its process only within a threaded group
//! (cgroups(7)), so that the process is put into a group as well, which limits nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;

const PERIOD_US: u32 = 100_000;
/// Groups of a run begin with it; the PID namespace and the id of its process follow.
const PREFIX: &str = "vslab-";
/// In the group of a process, version 2.
const VCPUS: &str = "vcpus";
/// A process that has ended leaves its group a moment later.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(2);

/// The group of a process that is limited; it goes when this is dropped, after the process.
#[derive(Debug)]
pub struct Quota {
    hierarchy: Hierarchy,
    group: PathBuf,
    process: Pid,
    percent: u32,
}

/// Path of the CPU controller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

impl Quota {
    /// A group for threads of this process, empty yet, which may take so much of one core.
    pub fn new(process: Pid, percent: u32) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
        let Some(hierarchy) = find(&mounts, has_cpu_controller) else {
            bail!("no control group with a CPU controller is mounted: a quota needs one");
        };
        let (Hierarchy::V1(root) | Hierarchy::V2(root)) = &hierarchy;
        let group = root.join(format!("{}{}-{process}", prefix(), std::process::id()));
        make(&group)?;
        Ok(Self { hierarchy, group, process, percent })
    }

    /// Limits these threads of the process to `percent` of one core, together.
    pub fn limit(&self, threads: &[Pid]) -> Result<()> {
        let percent = self.percent;
        match &self.hierarchy {
            Hierarchy::V1(_) => self.limit_v1(threads, percent),
            Hierarchy::V2(root) => self.limit_v2(root, threads, percent),
        }
        .with_context(|| format!("a quota of {percent} % of a core for process {}", self.process))
    }

    /// How long the threads have waited, having used up their share.
    pub fn throttled(&self) -> Result<Duration> {
        let (file, key, unit) = match &self.hierarchy {
            Hierarchy::V1(_) => (self.group.join("cpu.stat"), "throttled_time", 1),
            Hierarchy::V2(_) => (self.group.join(VCPUS).join("cpu.stat"), "throttled_usec", 1000),
        };
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let value =
            text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
        let value = value.with_context(|| format!("{} has no {key}", file.display()))?;
        Ok(Duration::from_nanos(value * unit))
    }

    /// Lets the threads run without a limit, or limits them again.
    pub fn lift(&self, lifted: bool) -> Result<()> {
        let percent = (!lifted).then_some(self.percent);
        match &self.hierarchy {
            Hierarchy::V1(_) => {
                let quota = percent.map_or("-1".into(), |percent| quota_us(percent).to_string());
                write(&self.group.join("cpu.cfs_quota_us"), quota)
            }
            Hierarchy::V2(_) => write(&self.group.join(VCPUS).join("cpu.max"), max(percent)),
        }
    }

    fn limit_v1(&self, threads: &[Pid], percent: u32) -> Result<()> {
        write(&self.group.join("cpu.cfs_period_us"), PERIOD_US)?;
        write(&self.group.join("cpu.cfs_quota_us"), quota_us(percent))?;
        threads.iter().try_for_each(|thread| write(&self.group.join("tasks"), thread))
    }

    fn limit_v2(&self, root: &Path, threads: &[Pid], percent: u32) -> Result<()> {
        write(&root.join("cgroup.subtree_control"), "+cpu")?;
        write(&self.group.join("cgroup.procs"), self.process)?;
        let vcpus = self.group.join(VCPUS);
        make(&vcpus)?;
        write(&vcpus.join("cgroup.type"), "threaded")?;
        write(&self.group.join("cgroup.subtree_control"), "+cpu")?;
        write(&vcpus.join("cpu.max"), max(Some(percent)))?;
        threads.iter().try_for_each(|thread| write(&vcpus.join("cgroup.threads"), thread))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.group) {
            eprintln!("a control group is left over: {error:#}");
        }
    }
}

/// The prefix of the names of all groups of this PID namespace: in another one a process may have
/// the same id.
fn prefix() -> String {
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
    format!("{PREFIX}{namespace}-")
}

/// Removes the groups of runs in this PID namespace that have ended without doing so.
pub fn remove_stale() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let Some(Hierarchy::V1(root) | Hierarchy::V2(root)) = find(&mounts, has_cpu_controller) else {
        return;
    };
    let prefix = prefix();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.split('-').next());
        let is_stale = owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists());
        if is_stale && let Err(error) = remove(&entry.path()) {
            eprintln!("a control group of an earlier run is left over: {error:#}");
        }
    }
}

/// Writes a quota in the format of cpu.max.
fn max(percent: Option<u32>) -> String {
    let quota = percent.map_or("max".into(), |percent| quota_us(percent).to_string());
    format!("{quota} {PERIOD_US}")
}

fn quota_us(percent: u32) -> u32 {
    PERIOD_US / 100 * percent
}

/// The CPU controller's hierarchy among the mounts, as /proc/self/mounts has them.
fn find(mounts: &str, has_cpu: impl Fn(&Path) -> bool) -> Option<Hierarchy> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = PathBuf::from(fields.next()?);
        let kind = fields.next()?;
        let mut options = fields.next()?.split(',');
        match kind {
            "cgroup" if options.any(|option| option == "cpu") => Some(Hierarchy::V1(path)),
            "cgroup2" if has_cpu(&path) => Some(Hierarchy::V2(path)),
            _ => None,
        }
    })
}

/// Whether a hierarchy of version 2 has a CPU controller.
fn has_cpu_controller(root: &Path) -> bool {
    let controllers = fs::read_to_string(root.join("cgroup.controllers"));
    controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "cpu"))
}

fn make(group: &Path) -> Result<()> {
    fs::create_dir(group).with_context(|| format!("make the control group {}", group.display()))
}

fn write(file: &Path, value: impl ToString) -> Result<()> {
    let value = value.to_string();
    fs::write(file, &value).with_context(|| format!("write {value} to {}", file.display()))
}

fn remove(group: &Path) -> Result<()> {
    let vcpus = group.join(VCPUS);
    for group in [vcpus.as_path(), group] {
        let deadline = Instant::now() + EMPTY_TIMEOUT;
        while group.exists() {
            match fs::remove_dir(group) {
                Ok(()) => break,
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => bail!("remove {}: {error}", group.display()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_controller_is_found_in_either_version() {
        let both = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                    cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n\
                    cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                    cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n";
        let v1 = Hierarchy::V1("/sys/fs/cgroup/cpu".into());
        assert_eq!(find(both, |_| false), Some(v1));
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(find(unified, |_| true), Some(Hierarchy::V2("/sys/fs/cgroup".into())));
        assert_eq!(find(unified, |_| false), None);
    }
}
