//! Processes of a carrier, with all that they have started themselves.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::Daemon;

/// Programs of one carrier. Dropping this kills them and their descendants, which would outlive
/// them otherwise.
#[derive(Debug, Default)]
pub struct Processes(Vec<Daemon>);

impl Processes {
    pub fn push(&mut self, daemon: Daemon) {
        self.0.push(daemon);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Fails once one of them has ended.
    pub fn check(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(Daemon::check)
    }

    /// CPU time of all of them so far, in seconds; `None` without a program.
    pub fn cpu_seconds(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| cpu_seconds(&self.pids()))
    }

    pub fn pids(&self) -> Vec<Pid> {
        self.0.iter().map(Daemon::pid).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        kill_descendants(&self.pids());
        // Signals all of them before it waits for the first.
        self.0.iter_mut().for_each(Daemon::tell_to_end);
    }
}

/// CPU seconds of these processes and of all their descendants that live.
fn cpu_seconds(roots: &[Pid]) -> f64 {
    // SAFETY: sysconf takes a plain number and has no other effect.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let ticks: u64 = family(roots).iter().filter_map(|pid| Some(read(*pid)?.cpu_ticks)).sum();
    ticks as f64 / ticks_per_second.max(1.0)
}

/// Kills the descendants of these processes, but not the processes themselves.
fn kill_descendants(roots: &[Pid]) {
    for pid in family(roots) {
        if !roots.contains(&Pid::from_raw(pid)) {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// User and system time of all its threads, in clock ticks.
    cpu_ticks: u64,
}

fn read(pid: i32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name, in parentheses, may hold anything; field 3 follows it.
fn parse(stat: &str) -> Option<Stat> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let user: u64 = fields.nth(9)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Stat { parent, cpu_ticks: user + system })
}

fn family(roots: &[Pid]) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(pid) = pid
            && let Some(stat) = read(pid)
        {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut family: Vec<_> = roots.iter().map(|pid| pid.as_raw()).collect();
    let mut next = 0;
    while let Some(pid) = family.get(next) {
        let known = children.remove(pid).unwrap_or_default();
        family.extend(known);
        next += 1;
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_and_both_kinds_of_time_are_found_behind_a_strange_name() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4 1 2 3 4 100 20 5 6 20 0 1 0 99";
        assert_eq!(parse(stat), Some(Stat { parent: 3, cpu_ticks: 120 }));
    }

    #[test]
    fn a_child_belongs_to_the_family_of_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(&[Pid::this()]);
        let found = family.contains(&(child.id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found && family[0] == Pid::this().as_raw());
    }
}
