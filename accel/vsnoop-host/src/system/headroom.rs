//! How much memory a process may still take before the kernel ends processes for want of it.
//!
//! Two bounds count. The host's: what /proc/meminfo calls available, less a floor that stays for
//! the VMs and all others. And those of the process's control groups, version 1 and 2, up to the
//! root: each one's limit (`memory.max`, `memory.high`; `memory.limit_in_bytes`), less what it
//! uses, less a part that the process needs for itself (stacks, page tables, its own start). In a
//! container with a cgroup namespace of its own the groups above it cannot be seen.
//!
//! Files of a group that were not used lately do not count: the kernel takes them back first.

use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup;
use super::memory::parse_meminfo;

/// The floor of the host: a part of its memory, within bounds.
const FLOOR_PART: u64 = 32;
const FLOOR_LEAST: u64 = 64 << 20;
const FLOOR_MOST: u64 = 1 << 30;
/// The reserve that a group keeps of its limit: a part of it and so much.
const OWN_PART: u64 = 16;
const OWN_LEAST: u64 = 8 << 20;
/// A limit beyond this is none: version 1 has no word for that.
const NO_LIMIT: u64 = 1 << 60;

/// Memory that a process may still take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    pub bytes: u64,
    pub bound: Bound,
}

/// The tightest bound on a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The memory that is available on the host.
    Host { available_bytes: u64, floor_bytes: u64 },
    /// The limit of a control group.
    Group { directory: PathBuf, limit_bytes: u64, used_bytes: u64 },
}

impl Headroom {
    /// The tightest bound of a process. `None`: none is known.
    pub fn of_process(pid: i32) -> Option<Self> {
        Self::read_headroom(&format!("/proc/{pid}"))
    }

    /// `process`: its directory in /proc.
    fn read_headroom(process: &str) -> Option<Self> {
        let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_host(&text));
        let groups = cgroup::directories(process, "memory");
        let bounds = groups.iter().flat_map(cgroup::Group::up_to_the_root).filter_map(of_group);
        host.into_iter().chain(bounds).min_by_key(|headroom| headroom.bytes)
    }
}

/// Bytes that the own process may take now.
pub fn own_bytes() -> u64 {
    Headroom::read_headroom("/proc/self").map_or(u64::MAX, |headroom| headroom.bytes)
}

fn of_host(meminfo: &str) -> Option<Headroom> {
    let available_bytes = parse_meminfo(meminfo, "MemAvailable:")?;
    let total_bytes = parse_meminfo(meminfo, "MemTotal:")?;
    let floor_bytes = (total_bytes / FLOOR_PART).clamp(FLOOR_LEAST, FLOOR_MOST);
    Some(Headroom {
        bytes: available_bytes.saturating_sub(floor_bytes),
        bound: Bound::Host { available_bytes, floor_bytes },
    })
}

/// `None`: it has no limit.
fn of_group(directory: &Path) -> Option<Headroom> {
    let number = |name: &str| {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limit_bytes = limits.iter().filter_map(|name| number(name)).min()?;
    if limit_bytes >= NO_LIMIT {
        return None;
    }
    let used_bytes = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let own_bytes = OWN_LEAST + limit_bytes / OWN_PART;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let used_bytes = used_bytes.saturating_sub(unused_file_bytes(&stat));
    Some(Headroom {
        bytes: limit_bytes.saturating_sub(used_bytes).saturating_sub(own_bytes),
        bound: Bound::Group { directory: directory.to_owned(), limit_bytes, used_bytes },
    })
}

/// Reads the bytes of the group and all below it; version 1 has another name for them.
fn unused_file_bytes(stat: &str) -> u64 {
    let value = |name: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(found, _)| *found == name)?.1.trim().parse().ok()
    };
    value("total_inactive_file").or_else(|| value("inactive_file")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_floor_of_the_hosts_memory_stays_available() {
        let room_of = |total: u64, available: u64| {
            let kib = |mib: u64| mib * 1024;
            let text = format!(
                "MemTotal:  {} kB\nMemFree:  1 kB\nMemAvailable:  {} kB\n",
                kib(total),
                kib(available)
            );
            of_host(&text).expect("known").bytes / MIB
        };
        assert_eq!(room_of(16384, 4096), 4096 - 512);
        assert_eq!(room_of(16384, 500), 0);
        assert_eq!(room_of(512, 100), 100 - 64);
        assert_eq!(room_of(1 << 20, 4096), 4096 - 1024);
        assert_eq!(of_host("MemTotal: 1 kB\n"), None);
    }

    fn group(name: &str, files: &[(&str, &str)]) -> (PathBuf, Option<Headroom>) {
        let name = format!("vsnoop-headroom-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("made");
        for (file, text) in files {
            fs::write(directory.join(file), text).expect("written");
        }
        let found = of_group(&directory);
        fs::remove_dir_all(&directory).expect("removed");
        (directory, found)
    }

    #[test]
    fn the_limits_of_both_versions_of_control_groups_are_kept() {
        let bytes = |name: &str, files: &[(&str, &str)]| group(name, files).1.map(|it| it.bytes);
        let (limit, used) = ((48 * MIB).to_string(), (20 * MIB).to_string());
        // 48 less 20, less 8, less a sixteenth of 48.
        let left = Some(17 * MIB);
        let second = [("memory.max", &*limit), ("memory.high", "max\n"), ("memory.current", &used)];
        assert_eq!(bytes("second", &second), left);
        let high = [("memory.max", "max\n"), ("memory.high", &*limit), ("memory.current", &used)];
        assert_eq!(bytes("high", &high), left);
        let first = [("memory.limit_in_bytes", &*limit), ("memory.usage_in_bytes", &used)];
        assert_eq!(bytes("first", &first), left);
        let cached = (30 * MIB).to_string();
        let stat = format!("inactive_file 7\ntotal_inactive_file {}\n", 10 * MIB);
        let files = [
            ("memory.limit_in_bytes", &*limit),
            ("memory.usage_in_bytes", &cached),
            ("memory.stat", &stat),
        ];
        assert_eq!(bytes("cached", &files), left);
        let full = [("memory.max", &*limit), ("memory.current", &limit)];
        assert_eq!(bytes("full", &full), Some(0));
    }

    #[test]
    fn a_group_without_a_limit_bounds_nothing() {
        for (name, files) in [
            ("none", &[("memory.max", "max\n"), ("memory.current", "7\n")][..]),
            ("huge", &[("memory.limit_in_bytes", "9223372036854771712\n")][..]),
            ("root", &[][..]),
        ] {
            assert_eq!(group(name, files).1, None, "{name}");
        }
    }

    #[test]
    fn the_own_process_has_some() {
        assert!(own_bytes() > 0);
        assert!(Headroom::of_process(std::process::id() as i32).is_some());
    }
}
