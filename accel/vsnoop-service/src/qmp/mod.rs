//! Follows the migrations of VMs by the QMP monitors of their QEMUs (docs/guide/migration.md).
//!
//! `phase` decides where a VM is, without input and output; `monitor` is a connection; here are all
//! of them, found by the paths of the configuration. A monitor that cannot be used is tried again
//! after a pause that doubles, or at once when another socket stands at its path.

mod monitor;
mod phase;

use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vsnoop_host::config::port::PortPattern;
use vsnoop_host::error::with_causes;

use crate::control::FailedMonitor;
use monitor::{Monitor, MonitorError};
pub use phase::Phase;

/// First and longest pause before a monitor is tried again.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// A failure for the same reason is a warning once in this time, unless the monitor was good for a
/// while since.
const WARN_AGAIN: Duration = Duration::from_secs(3600);
const GOOD: Duration = Duration::from_secs(300);
/// Most open monitors, of one QEMU and in all: QEMU's user may make any number of sockets.
const MOST_OF_PROCESS: usize = 16;
const MOST: usize = 1024;
/// The service remembers the last phase of a monitor for this long after its end.
const ENDED: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Monitors {
    /// By the path of their socket.
    entries: HashMap<PathBuf, Entry>,
    /// Last phases of the VMs of these processes, whose monitors have ended, and when they did.
    ended: HashMap<i32, (Phase, Instant)>,
}

struct Entry {
    /// Inode of the socket's file: another one has another listener.
    inode: u64,
    tries: u32,
    warned: Warned,
    /// Why it cannot be used, from a failure until its QEMU says how the VM is.
    trouble: Option<String>,
    state: State,
}

/// Reasons that were warnings, and when last.
type Warned = HashMap<Discriminant<MonitorError>, Instant>;

enum State {
    Open { monitor: Box<Monitor>, since: Instant },
    Failed { again_at: Instant },
}

impl Entry {
    /// The entry of a new socket, perhaps in the place of another one.
    fn new(path: &Path, inode: u64, warned: Warned, now: Instant) -> Self {
        let state = State::Failed { again_at: now };
        Self { inode, tries: 0, warned, trouble: None, state }.tried(path, now)
    }

    fn tried(self, path: &Path, now: Instant) -> Self {
        match Monitor::connect(path, now) {
            Ok(monitor) => {
                Self { state: State::Open { monitor: Box::new(monitor), since: now }, ..self }
            }
            Err(error) => self.failed(path, &error, now),
        }
    }

    fn failed(mut self, path: &Path, error: &MonitorError, now: Instant) -> Self {
        let (path, text) = (path.display(), with_causes(error));
        // A QEMU that ends closes its monitor.
        self.trouble = (!matches!(error, MonitorError::Closed)).then(|| text.clone());
        match self.is_worth_a_warning(error, now) {
            true => tracing::warn!(
                "QMP monitor {path}: {text}; tried again later, and until then a migration of its \
                 VM is not noticed"
            ),
            false => tracing::debug!("QMP monitor {path}: {text}"),
        }
        let again_at = now + (RETRY_FIRST * 2u32.saturating_pow(self.tries)).min(RETRY_MOST);
        let tries = (self.tries + 1).min(16);
        Self { tries, state: State::Failed { again_at }, ..self }
    }

    fn is_worth_a_warning(&mut self, error: &MonitorError, now: Instant) -> bool {
        let reason = discriminant(error);
        let is_due = self.warned.get(&reason).is_none_or(|last| now - *last >= WARN_AGAIN);
        // A QEMU that ends closes its monitor, and one that is hostile opens many.
        let is_quiet = matches!(error, MonitorError::Closed | MonitorError::TooMany { .. });
        let is_warning = is_due && !is_quiet;
        if is_warning {
            self.warned.insert(reason, now);
        }
        is_warning
    }

    /// The process of the QEMU behind an open monitor.
    fn pid(&self) -> Option<i32> {
        match &self.state {
            State::Open { monitor, .. } => Some(monitor.pid()),
            State::Failed { .. } => None,
        }
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        match &self.state {
            State::Open { monitor, .. } => monitor.due(now),
            State::Failed { again_at } => Some(*again_at),
        }
    }
}

impl Monitors {
    /// Connects to the monitors that these patterns name, and reads what QEMU has sent on each.
    pub fn follow(&mut self, patterns: &[PortPattern], now: Instant) {
        let found = sockets(patterns);
        self.ended.retain(|_, (_, since)| now - *since < ENDED);
        let (kept, lost) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|(path, _)| found.contains_key(path));
        self.entries = kept;
        // A QEMU that ends removes its socket.
        let lost: HashMap<_, _> = lost;
        lost.into_values().for_each(|entry| self.note_end(entry.state, now));
        for (path, inode) in found {
            let entry = match self.entries.remove(&path) {
                Some(entry @ Entry { state: State::Open { .. }, .. }) => {
                    self.attended(entry, &path, now)
                }
                Some(entry) if entry.inode == inode && entry.due(now) > Some(now) => entry,
                Some(entry) if entry.inode == inode => entry.tried(&path, now),
                other => {
                    let warned = other.map(|entry| entry.warned).unwrap_or_default();
                    Entry::new(&path, inode, warned, now)
                }
            };
            let entry = self.bounded(entry, &path, now);
            self.entries.insert(path, entry);
        }
    }

    /// This one, closed if there are too many beside it.
    fn bounded(&self, entry: Entry, path: &Path, now: Instant) -> Entry {
        let State::Open { monitor, .. } = &entry.state else { return entry };
        let pid = monitor.pid();
        let others: Vec<i32> = self.entries.values().filter_map(Entry::pid).collect();
        let of_process = others.iter().filter(|other| **other == pid).count();
        match of_process < MOST_OF_PROCESS && others.len() < MOST {
            true => entry,
            false => entry.failed(path, &MonitorError::TooMany { pid }, now),
        }
    }

    /// An open monitor, after it was read.
    fn attended(&mut self, mut entry: Entry, path: &Path, now: Instant) -> Entry {
        let State::Open { monitor, since } = &mut entry.state else { return entry };
        let was_good = now - *since >= GOOD;
        match monitor.attend(now) {
            Ok(()) if monitor.phase().is_some() => Entry { tries: 0, trouble: None, ..entry },
            Ok(()) => entry,
            Err(error) => {
                if was_good {
                    entry.warned.clear();
                }
                let failed = State::Failed { again_at: now };
                self.note_end(std::mem::replace(&mut entry.state, failed), now);
                entry.failed(path, &error, now)
            }
        }
    }

    /// Reads what is left of a monitor, and keeps its last word.
    fn note_end(&mut self, state: State, now: Instant) {
        let State::Open { mut monitor, .. } = state else { return };
        monitor.read_the_rest(now);
        let Some(phase) = monitor.phase() else { return };
        // One QEMU may have two monitors: the one that knows of a migration counts.
        let other = self.ended.remove(&monitor.pid()).filter(|_| phase == Phase::Here);
        self.ended.insert(monitor.pid(), other.unwrap_or((phase, now)));
    }

    /// Where the VM of this process was when its monitor ended, which was lately.
    pub fn last_phase(&self, pid: i32) -> Option<Phase> {
        self.ended.get(&pid).map(|(phase, _)| *phase)
    }

    /// The phase of the VM of this process; `None` if no monitor says it.
    pub fn phase(&self, pid: i32) -> Option<Phase> {
        let phases = self.entries.values().filter_map(|entry| match &entry.state {
            State::Open { monitor, .. } if monitor.pid() == pid => monitor.phase(),
            _ => None,
        });
        // One QEMU may have two monitors: the one that knows of a migration counts.
        phases.max_by_key(|phase| *phase != Phase::Here)
    }

    /// Those that cannot be used.
    pub fn failed(&self) -> Vec<FailedMonitor> {
        let failed = self.entries.iter().filter_map(|(path, entry)| {
            let reason = entry.trouble.clone()?;
            Some(FailedMonitor { path: path.display().to_string(), reason })
        });
        let mut failed: Vec<_> = failed.collect();
        failed.sort_by(|one, other| one.path.cmp(&other.path));
        failed
    }

    /// To be polled for input.
    pub fn descriptors(&self, now: Instant) -> Vec<BorrowedFd<'_>> {
        let open = self.entries.values().filter_map(|entry| match &entry.state {
            State::Open { monitor, .. } => monitor.descriptor(now),
            State::Failed { .. } => None,
        });
        open.collect()
    }

    /// When [`Monitors::follow`] is due even if nothing comes.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.due(now)).min()
    }
}

#[cfg(test)]
mod tests;

/// The sockets at the paths of these patterns, with their inodes.
fn sockets(patterns: &[PortPattern]) -> HashMap<PathBuf, u64> {
    let globs: HashSet<&str> =
        patterns.iter().flat_map(PortPattern::qmp).map(|glob| glob.as_str()).collect();
    let paths = globs.into_iter().filter_map(|glob| glob::glob(glob).ok()).flatten().flatten();
    let socket = |path: PathBuf| {
        let found = path.metadata().ok().filter(|found| found.file_type().is_socket())?;
        Some((path, found.ino()))
    };
    paths.filter_map(socket).collect()
}
