//! Commands that must succeed, and commands inside a namespace.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Netns;

/// Runs a command to its end and returns what it printed; an error carries what it complained of.
pub fn checked<I, S>(program: &str, arguments: I) -> Result<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}", output.status, complaint.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("reading what {program} printed"))
}

impl Netns {
    /// A command that will run inside the namespace; the caller adds arguments and starts it.
    ///
    /// The started process is the command itself, so its id is that of the command.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let netns = self.handle.as_raw_fd();
        // SAFETY: setns is a plain system call, allowed between fork and exec; the descriptor is
        // close-on-exec and still open in the child when the closure runs, as long as the caller
        // starts the command while the namespace lives, which `Netns` owners do.
        unsafe {
            command.pre_exec(move || {
                if libc::setns(netns, libc::CLONE_NEWNET) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command
    }

    /// `ip` with the words of `arguments`, inside the namespace.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        checked("ip", ["-n", self.name()].into_iter().chain(arguments.split_whitespace()))
    }
}
