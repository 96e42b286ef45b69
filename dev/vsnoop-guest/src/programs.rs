//! Programs that the host starts in the guest, by name: services and long computations.
//!
//! Each is a shell script in a process group of its own, so that its children end with it. Its
//! output goes to a file in memory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use vsnoop_guest::control::Reply;

const LOGS: &str = "/run/vsnoop";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The most of a program's output that an answer has: the control channel is slow.
const MOST_OUTPUT: usize = 16 << 10;
/// A shell says so of a program that a signal ended.
const SIGNALLED: i32 = 128;

#[derive(Default)]
pub struct Programs(HashMap<String, Child>);

impl Programs {
    pub fn start(&mut self, name: &str, script: &str) -> Result<()> {
        self.stop(name);
        fs::create_dir_all(LOGS).with_context(|| format!("create {LOGS}"))?;
        let log = log(name);
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = output.try_clone().context("a second handle of the log")?;
        let child = Command::new("/bin/sh")
            .args(["-euc", script])
            .env_clear()
            .envs([("PATH", PATH), ("HOME", "/root"), ("LC_ALL", "C.UTF-8")])
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start a shell for {name}"))?;
        self.0.insert(name.to_owned(), child);
        Ok(())
    }

    pub fn ended(&mut self, name: &str) -> Result<Reply> {
        let child = self.0.get_mut(name).with_context(|| format!("{name} was not started"))?;
        let status = child.try_wait().with_context(|| format!("look after {name}"))?;
        let code = status.map(|status| {
            status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or_default())
        });
        let bytes = fs::read(log(name)).unwrap_or_default();
        let end = &bytes[bytes.len().saturating_sub(MOST_OUTPUT)..];
        Ok(Reply::Ended { status: code, output: String::from_utf8_lossy(end).into_owned() })
    }

    /// Ends a program with its process group, if it runs.
    fn stop(&mut self, name: &str) {
        let Some(mut child) = self.0.remove(name) else { return };
        // All of the group may have ended, and waiting for a child that was waited for is an error.
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        let _ = child.wait();
    }
}

fn log(name: &str) -> PathBuf {
    Path::new(LOGS).join(name)
}
