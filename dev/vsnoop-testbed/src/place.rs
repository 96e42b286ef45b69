//! A place for `vsnoop` apart from the host's: a mount namespace with a BPF file system and a
//! `/run/vsnoop` of its own, so that its service, helper and engine are not those of the host, and
//! its ports are pinned where no other run sees them.
//!
//! Names of network namespaces are the host's. Those that are made later are mounted on
//! `/run/netns`, and appear in the place as well.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::net::Net;

/// Says that the mounts are there.
const READY: &str = "ready";
const MOUNT: &str = "mkdir -p /run/vsnoop && mount -t bpf bpf /sys/fs/bpf &&
    mount -t tmpfs -o mode=755 tmpfs /run/vsnoop && echo ready && exec sleep infinity";

/// It ends when this is dropped; processes that are left in it keep it until they end.
#[derive(Debug)]
pub struct Place {
    /// A process that keeps the namespace.
    holder: Child,
}

impl Place {
    /// `prefix`: of the names of network namespaces.
    pub fn new(prefix: &str) -> Result<Self> {
        // `ip` makes /run/netns a shared mount with the first namespace; a mount namespace gets
        // what is mounted later only if it was made after that.
        drop(Net::new(prefix).host("first")?);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "--", "sh", "-c", MOUNT]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        // SAFETY: prctl is a plain system call, allowed between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        let child = command.spawn();
        let holder = child.context("start unshare: is the package util-linux installed?")?;
        let mut place = Self { holder };
        let output = place.holder.stdout.take().context("no output of a child")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("wait for mounts")?;
        ensure!(line.trim() == READY, "a mount namespace with a BPF file system was not made");
        Ok(place)
    }

    /// A file of the place, for this process.
    pub fn path(&self, path: &str) -> PathBuf {
        format!("/proc/{}/root{path}", self.holder.id()).into()
    }

    /// The namespace.
    pub(crate) fn mounts(&self) -> PathBuf {
        format!("/proc/{}/ns/mnt", self.holder.id()).into()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
