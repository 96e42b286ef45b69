//! Processes that a test finds and holds up: helpers, engines, services.

use std::fs;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Ids of the processes, of whichever program, whose first argument is this. Those of other mount
/// and network namespaces are among them.
pub fn with_first_argument(argument: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list the processes")? {
        let name = entry.context("list the processes")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may just have ended.
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if arguments.split(|byte| *byte == 0).nth(1) == Some(argument.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// A process that stands still, and goes on when this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops it.
    pub fn process(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid);
        kill(pid, Signal::SIGSTOP).with_context(|| format!("stop process {pid}"))?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}
