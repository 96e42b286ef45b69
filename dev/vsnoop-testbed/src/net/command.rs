//! Commands inside a namespace.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Result;

use super::Netns;
use super::checked::checked;

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

    /// `tc` with the words of `arguments`, inside the namespace.
    pub fn tc(&self, arguments: &str) -> Result<String> {
        checked("tc", ["-n", self.name()].into_iter().chain(arguments.split_whitespace()))
    }

    /// `nft` with these rules, inside the namespace.
    pub fn nft(&self, rules: &str) -> Result<String> {
        checked("ip", ["netns", "exec", self.name(), "nft", rules])
    }
}
