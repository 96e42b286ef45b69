//! Finds, waits for and kills the two background processes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// Far longer than it takes to start one.
const PATIENCE: Duration = Duration::from_secs(120);

/// A background process, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    Helper,
    Engine,
}

impl Process {
    /// The id of the running one, if there is one. If none runs, this takes its lock for a moment.
    pub fn pid(self) -> Result<Option<i32>> {
        let name = match self {
            Self::Helper => "helper",
            Self::Engine => "engine",
        };
        let path = format!("/run/vsnoop/{name}.lock");
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("open {path}")),
        };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => Ok(None),
            Err((_, Errno::EWOULDBLOCK)) => {
                let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
                // The id may not be written yet, or be that of the previous process, which has
                // ended.
                let pid = text.trim().parse().ok();
                Ok(pid.filter(|pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok()))
            }
            Err((_, errno)) => Err(errno).with_context(|| format!("look at {path}")),
        }
    }

    /// Waits for a running one other than `before`.
    pub fn next(self, before: Option<i32>) -> Result<i32> {
        let since = Instant::now();
        loop {
            match self.pid()? {
                Some(pid) if Some(pid) != before => return Ok(pid),
                _ if since.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
                _ => bail!("no {self:?} comes after {before:?}"),
            }
        }
    }

    /// Sends a signal to the running one, and returns its id.
    pub fn signal(self, signal: Signal) -> Result<i32> {
        let pid = self.next(None)?;
        signal::kill(Pid::from_raw(pid), signal)
            .with_context(|| format!("send {signal} to {self:?} {pid}"))?;
        Ok(pid)
    }

    /// Kills the running one, waits until it has ended, and returns its id.
    pub fn kill(self) -> Result<i32> {
        let pid = self.signal(Signal::SIGKILL)?;
        let since = Instant::now();
        while self.pid()? == Some(pid) {
            ensure!(since.elapsed() < PATIENCE, "{self:?} {pid} cannot be killed");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(pid)
    }
}

/// The inode number of the program that a process runs.
pub fn program_of(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/exe");
    Ok(fs::metadata(&path).with_context(|| path)?.ino())
}
