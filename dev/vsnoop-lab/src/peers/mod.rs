//! Programs that vsnoop is compared with; they run in the host's namespace of a stage, or
//! ([`link`]) of two hosts.
//!
//! Each is a process of its own, which gets SIGTERM when its owner is dropped, so that it takes
//! its files along, and killed if it does not; and it dies with the thread that started it.

pub mod link;
pub mod proxy;
pub mod server;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;

const START_TIMEOUT: Duration = Duration::from_secs(10);
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A running program.
#[derive(Debug)]
struct Daemon(Child);

impl Daemon {
    /// Starts it and waits until it listens on all these TCP ports of the namespace. What it prints
    /// goes to `log`.
    fn start(mut command: Command, netns: &Netns, ports: &[u16], log: &Path) -> Result<Self> {
        let file =
            std::fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
        command.stdin(Stdio::null());
        command.stdout(file.try_clone().context("share the log of a program")?).stderr(file);
        // SAFETY: prctl and setsid are plain system calls, allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                nix::unistd::setsid()?;
                Ok(())
            });
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("start {program}"))?;
        let mut daemon = Self(child);
        let deadline = Instant::now() + START_TIMEOUT;
        for &port in ports {
            while !netns.listens(port)? {
                interrupt::check()?;
                let ended = daemon.0.try_wait().with_context(|| format!("look after {program}"))?;
                if ended.is_some() || Instant::now() > deadline {
                    let words = std::fs::read_to_string(log).unwrap_or_default();
                    bail!("{program} does not listen on port {port}: {}", words.trim());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(daemon)
    }

    /// Fails once the program has ended.
    fn check(&mut self) -> Result<()> {
        match self.0.try_wait().context("look after a program")? {
            Some(status) => bail!("it ended ({status})"),
            None => Ok(()),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }

    /// Sends SIGTERM, and does not wait.
    fn tell_to_end(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // The process may have ended; its id is not used again before we wait for it.
            let _ = kill(self.pid(), Signal::SIGTERM);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.tell_to_end();
        let deadline = Instant::now() + END_TIMEOUT;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // It may have ended already, and waiting for a child that was waited for is an error too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
