//! Follows the migrations of VMs by the QMP monitors of their QEMUs (docs/operations.md).
//!
//! `phase` decides where a VM is, without input and output; `monitor` is a connection; here are all
//! of them, found by the paths of the configuration. A monitor that cannot be used is tried again
//! after a pause that doubles, or at once when another socket stands at its path.

mod monitor;
mod phase;

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vsnoop_host::config::port::PortPattern;
use vsnoop_host::error::with_causes;

use monitor::{Monitor, MonitorError};
pub use phase::Phase;

/// First and longest pause before a monitor is tried again.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);

/// Monitors by the path of their socket.
#[derive(Default)]
pub struct Monitors(HashMap<PathBuf, Entry>);

struct Entry {
    /// Inode of the socket's file: another one has another listener.
    inode: u64,
    tries: u32,
    state: State,
}

enum State {
    Open(Box<Monitor>),
    Failed { again_at: Instant },
}

impl Entry {
    fn try_at(path: &Path, inode: u64, tries: u32, now: Instant) -> Self {
        match Monitor::connect(path, now) {
            Ok(monitor) => Self { inode, tries, state: State::Open(Box::new(monitor)) },
            Err(error) => Self::failed(path, inode, tries, &error, now),
        }
    }

    fn failed(path: &Path, inode: u64, tries: u32, error: &MonitorError, now: Instant) -> Self {
        let (path, text) = (path.display(), with_causes(error));
        // A QEMU that ends closes its monitor.
        match (error, tries) {
            (MonitorError::Closed, _) | (_, 1..) => tracing::debug!("QMP monitor {path}: {text}"),
            _ => tracing::warn!(
                "QMP monitor {path}: {text}; tried again later, and until then a migration of its \
                 VM is not noticed"
            ),
        }
        let again_at = now + (RETRY_FIRST * 2u32.saturating_pow(tries)).min(RETRY_MOST);
        Self { inode, tries: (tries + 1).min(16), state: State::Failed { again_at } }
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        match &self.state {
            State::Open(monitor) => monitor.due(now),
            State::Failed { again_at } => Some(*again_at),
        }
    }
}

impl Monitors {
    /// Connects to the monitors that these patterns name, and reads what QEMU has sent on each.
    pub fn follow(&mut self, patterns: &[PortPattern], now: Instant) {
        let found = sockets(patterns);
        self.0.retain(|path, _| found.contains_key(path));
        for (path, inode) in found {
            let entry = match self.0.remove(&path) {
                Some(entry @ Entry { state: State::Open(_), .. }) => attended(entry, &path, now),
                Some(entry) if entry.inode == inode && entry.due(now) > Some(now) => entry,
                Some(entry) if entry.inode == inode => {
                    Entry::try_at(&path, inode, entry.tries, now)
                }
                _ => Entry::try_at(&path, inode, 0, now),
            };
            self.0.insert(path, entry);
        }
    }

    /// The phase of the VM of this process; `None` if no monitor says it.
    pub fn phase(&self, pid: i32) -> Option<Phase> {
        let phases = self.0.values().filter_map(|entry| match &entry.state {
            State::Open(monitor) if monitor.pid() == pid => monitor.phase(),
            _ => None,
        });
        // Of two monitors of one QEMU the one that knows of a migration.
        phases.max_by_key(|phase| *phase != Phase::Here)
    }

    /// To be polled for input.
    pub fn descriptors(&self, now: Instant) -> Vec<BorrowedFd<'_>> {
        let open = self.0.values().filter_map(|entry| match &entry.state {
            State::Open(monitor) => monitor.descriptor(now),
            State::Failed { .. } => None,
        });
        open.collect()
    }

    /// When [`Monitors::follow`] is due even if nothing comes.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.0.values().filter_map(|entry| entry.due(now)).min()
    }
}

/// An open monitor, after it was read.
fn attended(mut entry: Entry, path: &Path, now: Instant) -> Entry {
    let State::Open(monitor) = &mut entry.state else { return entry };
    match monitor.attend(now) {
        Ok(()) if monitor.phase().is_some() => Entry { tries: 0, ..entry },
        Ok(()) => entry,
        Err(error) => Entry::failed(path, entry.inode, entry.tries, &error, now),
    }
}

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
