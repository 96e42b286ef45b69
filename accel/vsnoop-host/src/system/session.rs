//! Leaves the control groups of the session in which a command was run.
//!
//! A background process that a command starts is born into the command's groups: those of a login,
//! of `kubectl exec`, of a job. They are killed with everything in them (`cgroup.kill`, systemd's
//! `KillUserProcesses=`), and their limits are not meant for a service of the host. So the process
//! moves to the root of each hierarchy. Where that takes no processes, as version 2's root within a
//! container does not, it moves to a group of its own below it. A hierarchy that is mounted
//! read-only, as in an ordinary container and under the unit of the service, is not left.
//!
//! A scope of systemd would do as well where systemd runs, but takes D-Bus, a unit that can fail,
//! and another way for all other hosts. systemd leaves processes in the root alone until the host
//! shuts down.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::cgroup::{self, Group};

/// Below the root of version 2, where the root itself takes no processes.
const OWN_GROUP: &str = "vsnoop";
/// The hierarchy by which systemd knows its units on hosts with version 1.
const SYSTEMD: &str = "name=systemd";

/// Moves this process out of its groups, as far as it may.
pub fn leave() {
    for group in cgroup::all_directories("/proc/self") {
        if group.directory == group.mounted_at || move_to(&group.mounted_at) || !group.is_unified {
            continue;
        }
        let own = group.mounted_at.join(OWN_GROUP);
        if fs::create_dir(&own).is_ok() || own.is_dir() {
            move_to(&own);
        }
    }
}

fn move_to(directory: &Path) -> bool {
    let procs = OpenOptions::new().write(true).open(directory.join("cgroup.procs"));
    // 0: the process that writes.
    procs.and_then(|mut procs| procs.write_all(b"0")).is_ok()
}

/// The group with which a process that this one has started may be killed, because it could not
/// leave it.
pub fn shared_with(pid: i32) -> Option<PathBuf> {
    let groups_of = |process: &str| -> Vec<Group> {
        let groups = cgroup::directories(process, SYSTEMD).into_iter();
        groups.filter(|group| !is_root(group)).collect()
    };
    let own = groups_of("/proc/self");
    let others = groups_of(&format!("/proc/{pid}"));
    own.into_iter().find(|group| others.contains(group)).map(|group| group.directory)
}

/// Is it the root of its hierarchy, and not of a part that a container sees?
fn is_root(group: &Group) -> bool {
    let has = |name: &str| group.directory.join(name).exists();
    // cgroups(7): the first is in all groups but the root, the second in the root only.
    if group.is_unified { !has("cgroup.events") } else { has("release_agent") }
}
