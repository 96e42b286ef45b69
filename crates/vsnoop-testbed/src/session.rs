//! Runs one lab at a time, and undoes its changes to the machine.
//!
//! A [`Session`] holds a lock, so that a second lab on the same machine is refused, and a journal
//! of changes to undo: settings of the kernel, QEMU processes, attached ports. Dropping it undoes
//! all of them. After a crash the next session undoes the journal first; it recognises processes by
//! id and start time, so that it does not kill a later process of the same id.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::net;
use crate::vm::quota;
use crate::vsnoop::Vsnoop;

/// All names of namespaces, bridges and taps begin with it.
pub const PREFIX: &str = "vslab-";

const RUN_DIR: &str = "/run/vsnoop-lab";

#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    settings: Vec<Setting>,
    processes: Vec<Process>,
    ports: Vec<PortRecord>,
}

/// A kernel setting and the value that it had before.
#[derive(Debug, Serialize, Deserialize)]
struct Setting {
    path: PathBuf,
    before: String,
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

/// The lock of this machine's lab, and the journal.
#[derive(Debug)]
pub struct Session {
    journal: Journal,
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Session {
    /// Takes the lock and clears up after a run that crashed.
    pub fn begin() -> Result<Self> {
        let dir = PathBuf::from(RUN_DIR);
        fs::create_dir_all(&dir).with_context(|| format!("create {RUN_DIR} (needs root)"))?;
        let path = dir.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        let lock =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(
                |(_, errno)| match errno {
                    Errno::EWOULDBLOCK => {
                        anyhow!(
                            "another vsnoop-lab is running ({} is locked): wait for it",
                            path.display()
                        )
                    }
                    errno => anyhow!("lock {}: {errno}", path.display()),
                },
            )?;
        let mut session = Self { journal: Journal::default(), dir, _lock: lock };
        session.recover();
        Ok(session)
    }

    /// A directory for consoles and sockets; it is removed at the end.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("vms")
    }

    /// Changes a setting under /proc/sys until the session ends.
    pub fn set_sysctl(&mut self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        let before = fs::read_to_string(&path)
            .with_context(|| format!("read {}", path.display()))?
            .trim()
            .to_owned();
        self.journal.settings.push(Setting { path: path.clone(), before });
        self.save()?;
        fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    }

    /// Lets network namespaces choose this congestion control, which the kernel may restrict to the
    /// initial one.
    pub fn allow_congestion_control(&mut self, name: &str) -> Result<()> {
        let key = "net.ipv4.tcp_allowed_congestion_control";
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        let allowed =
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if allowed.split_whitespace().any(|known| known == name) {
            return Ok(());
        }
        self.set_sysctl(key, &format!("{} {name}", allowed.trim()))
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

    fn path(&self) -> PathBuf {
        self.dir.join("journal.json")
    }

    fn save(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.journal).context("encode the journal")?;
        let partial = self.dir.join("journal.partial");
        fs::write(&partial, text).with_context(|| format!("write {}", partial.display()))?;
        fs::rename(&partial, self.path()).context("put the journal into its place")
    }

    fn recover(&mut self) {
        let old = fs::read(self.path()).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(old) = old {
            eprintln!("an earlier run ended without clearing up: doing it now");
            self.journal = old;
        }
        self.undo();
    }

    /// Undoes the journal's entries. Each step is tried, also if others failed.
    fn undo(&mut self) {
        for port in self.journal.ports.drain(..) {
            if !Path::new("/run/netns").join(&port.netns).exists() {
                continue;
            }
            // Detaching a port that is not attached is an error that changes nothing.
            if let Ok(vsnoop) = Vsnoop::find() {
                let _ = vsnoop.in_netns(&port.netns).detach(&port.name);
            }
        }
        for process in self.journal.processes.drain(..) {
            if start_time(process.pid) == Some(process.start) {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
        for setting in self.journal.settings.drain(..).rev() {
            if let Err(error) = fs::write(&setting.path, &setting.before) {
                let path = setting.path.display();
                eprintln!("{path} is not set back to {}: {error}", setting.before);
            }
        }
        if let Err(error) = net::remove_stale(PREFIX) {
            eprintln!("a network namespace is left over: {error:#}");
        }
        quota::remove_stale();
        let _ = fs::remove_dir_all(self.scratch());
        let _ = fs::remove_file(self.path());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.undo();
    }
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
