//! What processes use: CPU time, memory, descriptors, and memory of the kernel in BPF maps.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// CPU time of all threads of a process so far, to the nanosecond.
pub fn cpu_time(pid: Pid) -> Result<Duration> {
    let time = clock_getcpuclockid(pid).and_then(|clock| clock.now());
    Ok(time.with_context(|| format!("ask for the CPU time of process {pid}"))?.into())
}

/// A size in `/proc/PID/status`, such as `VmRSS`.
pub fn status_kilobytes(pid: Pid, key: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("ask how process {pid} is"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no {key} in the status of process {pid}"))
}

/// How many descriptors a process has open.
pub fn descriptors(pid: Pid) -> Result<usize> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    Ok(entries.with_context(|| format!("list the descriptors of process {pid}"))?.count())
}

/// BPF maps that processes have open, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    pub count: usize,
    /// Memory of the kernel.
    pub bytes: u64,
}

/// The maps that these processes have open.
pub fn maps(pids: &[Pid]) -> Result<Maps> {
    let mut bytes_of = BTreeMap::new();
    for pid in pids {
        let entries = fs::read_dir(format!("/proc/{pid}/fdinfo"));
        let entries = entries.with_context(|| format!("list the descriptors of process {pid}"))?;
        // A descriptor may be closed meanwhile.
        let texts = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
        bytes_of.extend(texts.filter_map(|text| map(&text)));
    }
    Ok(Maps { count: bytes_of.len(), bytes: bytes_of.values().sum() })
}

/// Id and memory of the map, if it is one, of a file in `/proc/PID/fdinfo`.
fn map(text: &str) -> Option<(u64, u64)> {
    let number = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key))?;
        value.trim().parse().ok()
    };
    Some((number("map_id:")?, number("memlock:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_known_by_its_id_and_a_program_is_none() {
        let text = "pos:\t0\nmap_type:\t1\nmax_entries:\t64\nmemlock:\t8192\nmap_id:\t17\n";
        assert_eq!(map(text), Some((17, 8192)));
        assert_eq!(map("pos:\t0\nprog_id:\t3\nmemlock:\t4096\n"), None);
    }

    #[test]
    fn an_open_file_is_one_descriptor_more_and_work_takes_time() {
        let own = Pid::this();
        let before = cpu_time(own).unwrap();
        assert!(status_kilobytes(own, "VmRSS").unwrap() > 0);
        assert!(descriptors(own).unwrap() > 0);
        assert!(cpu_time(own).unwrap() > before);
    }
}
