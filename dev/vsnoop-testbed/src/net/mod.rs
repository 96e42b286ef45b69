//! Network namespaces and their devices, owned: what is dropped is gone.
//!
//! A [`Net`] makes them; all networks of tests, lab and bench are built so. A [`Netns`] has a name
//! under `/run/netns`, as `ip netns` makes it, so that `ip -n NAME` and `vsnoop --netns NAME` find
//! it. Devices are configured by the `ip` command inside it; they need no owner of their own, for
//! they vanish with their namespace (a veth with either of its two). Code and commands run inside
//! by [`Netns::run`] and [`Netns::command`].
//!
//! Names begin with a prefix that the caller owns and carry the owner's process id and the number
//! of the network; what a crashed run left behind is found by prefix and process
//! ([`remove_stale`]).

mod checked;
mod command;
mod counter;
mod link;
mod network;
mod ping;
mod sockets;
mod stale;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

pub use checked::{check, checked};
pub use counter::{DeviceCounters, TcpCounters};
pub use link::mac_text;
pub use network::Net;
pub use ping::{echo_number, echo_request};
pub use stale::remove_stale;
pub use vsnoop_netdev::tap::{Offloads, Tap, TapOptions};

/// A network namespace that is deleted when this is dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: File,
}

impl Netns {
    /// Makes the namespace `name` with its loopback up.
    ///
    /// The name must be free; [`Net`] has names that can be cleaned up after a crash.
    fn create(name: &str) -> Result<Self> {
        change_names("add", name)
            .with_context(|| format!("making network namespace {name} (needs root)"))?;
        let path = PathBuf::from("/run/netns").join(name);
        let handle = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let netns = Self { name: name.to_owned(), handle };
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// The name, as `ip netns` and `vsnoop --netns` take it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its inode number, by which vsnoop knows it.
    pub fn inode(&self) -> Result<u64> {
        let metadata = self.handle.metadata();
        Ok(metadata.with_context(|| format!("the inode of namespace {}", self.name))?.ino())
    }

    /// Runs `work` on a thread of its own inside the namespace and returns what it returns.
    ///
    /// Sockets and taps opened there stay in the namespace when they leave it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(self.handle.as_fd(), CloneFlags::CLONE_NEWNET)
                        .with_context(|| format!("entering network namespace {}", self.name))?;
                    work()
                })
                .join()
                .map_err(|_| anyhow!("a thread inside network namespace {} panicked", self.name))?
        })
    }

    /// Reads a sysctl of the namespace: `net.ipv4.tcp_sack`.
    pub fn sysctl(&self, key: &str) -> Result<String> {
        let path = sysctl_path(key);
        self.run(|| {
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        })
        .map(|text| text.trim_end().to_owned())
    }

    /// Sets a sysctl of the namespace.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = sysctl_path(key);
        self.run(|| {
            std::fs::write(&path, value)
                .with_context(|| format!("setting {} to {value}", path.display()))
        })
    }
}

impl Netns {
    /// Has a core process what a device with one queue receives (RPS); `None`: the core that has
    /// it.
    pub fn steer(&self, device: &str, core: Option<usize>) -> Result<()> {
        let mask = core.map_or(0, |core| 1_u64 << core);
        // `ip netns exec` mounts the sysfs of the namespace.
        let write = format!("echo {mask:x} >/sys/class/net/{device}/queues/rx-0/rps_cpus");
        checked("ip", ["netns", "exec", &self.name, "sh", "-c", &write])
            .with_context(|| format!("steer what {device} receives"))?;
        Ok(())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = change_names("del", &self.name) {
            tracing::warn!(netns = self.name, "namespace not deleted: {error:#}");
        }
    }
}

/// `ip netns add` or `del`. In a process group of its own: a signal from the terminal must not end
/// it half way, when the name is mounted and no [`Netns`] will remove it.
fn change_names(how: &str, name: &str) -> Result<()> {
    check(Command::new("ip").args(["netns", how, name]).process_group(0)).map(drop)
}

fn sysctl_path(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key.replace('.', "/"))
}
