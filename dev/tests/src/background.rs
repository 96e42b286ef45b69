//! Finds, waits for and kills the background processes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use vsnoop_testbed::process::{self, Stopped};

/// Far longer than it takes to start one.
const PATIENCE: Duration = Duration::from_secs(120);

/// A background process, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    Helper,
    Engine,
    Splitter,
    Keeper,
}

impl Process {
    /// The command that runs it.
    fn name(self) -> &'static str {
        match self {
            Self::Helper => "helper",
            Self::Engine => "engine",
            Self::Splitter => "splitter",
            Self::Keeper => "keeper",
        }
    }

    /// The id of the running one, if there is one. If none runs, this takes its lock for a moment.
    pub fn pid(self) -> Result<Option<i32>> {
        let path = format!("/run/vsnoop/{}.lock", self.name());
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

    /// Stops the running one as long as the value lives.
    pub fn stop(self) -> Result<Stopped> {
        let pid = self.next(None)?;
        Stopped::process(pid).with_context(|| format!("of {self:?}"))
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

    /// Kills all of them, those as well that wait for the lock: a command and the helper may each
    /// have started an engine, and on a busy machine the second takes its time. For a test whose
    /// PID namespace has no others.
    pub fn kill_all(self) -> Result<()> {
        let since = Instant::now();
        loop {
            let all = self.all()?;
            if all.is_empty() {
                return Ok(());
            }
            ensure!(since.elapsed() < PATIENCE, "{self:?} {all:?} cannot be killed");
            for pid in all {
                match signal::kill(Pid::from_raw(pid), Signal::SIGKILL) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(errno) => return Err(errno).with_context(|| format!("kill {pid}")),
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ids of the processes with this command.
    fn all(self) -> Result<Vec<i32>> {
        process::with_first_argument(self.name())
    }
}

/// The inode number of the program that a process runs.
pub fn program_of(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/exe");
    Ok(fs::metadata(&path).with_context(|| path)?.ino())
}
