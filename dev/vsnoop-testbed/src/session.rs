//! Keeps runs on one machine apart, and undoes their changes to it.
//!
//! A [`Session`] has a directory with a lock and a journal of what is to be undone: QEMU processes,
//! attached ports; [`settings`] of the kernel are shared with the sessions beside it. Dropping it
//! undoes all of them. After a crash the next session does it for the crashed one, whose lock is
//! free; it recognises processes by id and start time, so that it does not kill a later process of
//! the same id.
//!
//! Sessions stand beside each other, but for the core of the guests, which has one at a time
//! ([`Session::claim_guest_core`]).

mod file;
mod settings;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::lock::{try_lock, wait_for};
use crate::net;
use crate::vm::{GUEST_CORE, quota};
use crate::vsnoop::Vsnoop;

/// All names of namespaces, bridges and taps begin with it.
pub const PREFIX: &str = "vslab-";

const RUN_DIR: &str = "/run/vsnoop-lab";
/// Held while sessions begin and end.
const LOCK: &str = "lock";
/// Held by the session whose guests have the core.
const GUEST_CORE_LOCK: &str = "guest-core";
const JOURNAL: &str = "journal.json";

#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    processes: Vec<Process>,
    ports: Vec<PortRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Process {
    pid: i32,
    start: u64,
}

/// A port that may be attached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PortRecord {
    netns: String,
    name: String,
}

/// A run on this machine.
#[derive(Debug)]
pub struct Session {
    journal: Journal,
    dir: PathBuf,
    guest_core: Option<Flock<File>>,
    _lock: Flock<File>,
}

impl Session {
    /// Begins a run and clears up after those that crashed.
    pub fn begin() -> Result<Self> {
        let run_dir = Path::new(RUN_DIR);
        fs::create_dir_all(run_dir).with_context(|| format!("create {RUN_DIR} (needs root)"))?;
        let beginning = wait_for(&run_dir.join(LOCK), "another run begins or ends")?;
        recover(run_dir);
        let dir = run_dir.join(std::process::id().to_string());
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let lock = try_lock(&dir.join(LOCK))?;
        let lock = lock.context("this process has a session already")?;
        drop(beginning);
        Ok(Self { journal: Journal::default(), dir, guest_core: None, _lock: lock })
    }

    /// Waits until no other run has guests on their core; it is this one's until the end.
    pub fn claim_guest_core(&mut self) -> Result<()> {
        if self.guest_core.is_none() {
            let what = format!("core {GUEST_CORE} has the guests of another run");
            self.guest_core = Some(wait_for(&Path::new(RUN_DIR).join(GUEST_CORE_LOCK), &what)?);
        }
        Ok(())
    }

    /// A directory for consoles and sockets; it is removed at the end.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("vms")
    }

    /// Changes a setting under /proc/sys until the last session that changed it ends.
    pub fn set_sysctl(&mut self, key: &str, value: &str) -> Result<()> {
        self.change_sysctl(key, |_| value.to_owned())
    }

    /// Lets network namespaces choose this congestion control, which the kernel may restrict to the
    /// initial one.
    pub fn allow_congestion_control(&mut self, name: &str) -> Result<()> {
        self.change_sysctl("net.ipv4.tcp_allowed_congestion_control", |allowed| {
            match allowed.split_whitespace().any(|known| known == name) {
                true => allowed.to_owned(),
                false => format!("{allowed} {name}"),
            }
        })
    }

    /// Changes a setting to what `value` makes of the present one. No other run changes it between
    /// the two.
    fn change_sysctl(&mut self, key: &str, value: impl FnOnce(&str) -> String) -> Result<()> {
        let run_dir = Path::new(RUN_DIR);
        let _changing = wait_for(&run_dir.join(LOCK), "another run begins or ends")?;
        settings::change(run_dir, &name_of(&self.dir), &sysctl(key), value)
    }

    /// Notes a process to be killed, should this session crash.
    pub fn note_process(&mut self, pid: Pid) -> Result<()> {
        let start = start_time(pid.as_raw()).with_context(|| format!("process {pid} is gone"))?;
        self.journal.processes.push(Process { pid: pid.as_raw(), start });
        self.save()
    }

    /// Notes a port to be detached, should this session crash.
    pub fn note_port(&mut self, netns: &str, name: &str) -> Result<()> {
        let port = PortRecord { netns: netns.to_owned(), name: name.to_owned() };
        if self.journal.ports.contains(&port) {
            return Ok(());
        }
        self.journal.ports.push(port);
        self.save()
    }

    fn save(&self) -> Result<()> {
        file::write_json(&self.dir.join(JOURNAL), &self.journal)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Another session that begins or ends has the lock; an interrupted run waits for that, too.
        let file = File::open(Path::new(RUN_DIR).join(LOCK)).ok();
        let _ending = file.and_then(|file| Flock::lock(file, FlockArg::LockExclusive).ok());
        undo(Path::new(RUN_DIR), &self.dir, std::mem::take(&mut self.journal));
    }
}

fn sysctl(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// Clears up after sessions that ended without doing so: their locks are free.
fn recover(run_dir: &Path) {
    for entry in fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let dir = entry.path();
        if !dir.is_dir() || !matches!(try_lock(&dir.join(LOCK)), Ok(Some(_))) {
            continue;
        }
        eprintln!("an earlier run ended without clearing up: doing it now");
        let text = fs::read(dir.join(JOURNAL)).ok();
        let journal = text.and_then(|text| serde_json::from_slice(&text).ok());
        undo(run_dir, &dir, journal.unwrap_or_default());
    }
}

/// Undoes the entries of the journal of the session in `dir`. Each step is tried, also if others
/// failed.
fn undo(run_dir: &Path, dir: &Path, journal: Journal) {
    for port in journal.ports {
        if !Path::new("/run/netns").join(&port.netns).exists() {
            continue;
        }
        // Detaching a port that is not attached is an error that changes nothing.
        if let Ok(vsnoop) = Vsnoop::find() {
            let _ = vsnoop.in_netns(&port.netns).detach(&port.name);
        }
    }
    for process in journal.processes {
        if start_time(process.pid) == Some(process.start) {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
    }
    settings::give_back(run_dir, &name_of(dir));
    if let Err(error) = net::remove_stale(PREFIX) {
        eprintln!("a network namespace is left over: {error:#}");
    }
    quota::remove_stale();
    let _ = fs::remove_dir_all(dir);
}

/// Field 22 of /proc/PID/stat: clock ticks from boot to the start of the process.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold spaces; field 3 follows it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_time() {
        let own = std::process::id() as i32;
        let start = start_time(own);
        assert!(start.is_some_and(|ticks| ticks > 0));
        assert_eq!(start, start_time(own));
        assert_ne!(start, start_time(1));
        assert_eq!(start_time(i32::MAX), None);
    }
}
