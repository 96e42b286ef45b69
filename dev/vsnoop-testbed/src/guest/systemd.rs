//! A machine that runs a distribution's systemd: a [`System`](super::System) with systemd as its
//! init, and a second disk with files of the caller.
//!
//! Its changes of files are in QEMU's memory: they outlive a reboot of the machine, and end with
//! it. It is emulated, so that it runs wherever QEMU is.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Kernel;
use super::archive::{self, Archive};
use super::emulator::Emulator;
use crate::net::checked;

/// For the two disks.
const DISK_MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];
/// Programs that the init of the initramfs needs, with their packages.
const TOOLS: [(&str, &str); 4] =
    [("sh", "dash"), ("mount", "mount"), ("insmod", "kmod"), ("switch_root", "util-linux")];
/// Loads modules, and hands over to systemd on the first disk.
const INIT: &str = "#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod \"/modules/$module\"; done < /modules/order
mount -t ext4 /dev/vda /root
exec switch_root /root /sbin/init
";

/// A machine with a root file system that systemd boots.
pub struct SystemdMachine<'a> {
    pub kernel: &'a Kernel,
    /// Loaded before systemd starts, with all that they need.
    pub modules: &'a [&'a str],
    /// The root file system, `/dev/vda`; it is not written.
    pub disk: &'a Path,
    /// Another file system, `/dev/vdb`; it is not written.
    pub data: &'a Path,
    pub memory_mb: u32,
}

impl SystemdMachine<'_> {
    /// Boots the machine and waits until it powers off, reboots included; after `limit` it is
    /// killed. Returns its console, and QEMU's exit status if it ended by itself. `show` gets what
    /// it prints, as soon as it does.
    pub fn run(
        &self,
        limit: Duration,
        show: impl Fn(&str) + Send,
    ) -> Result<(String, Option<ExitStatus>)> {
        let drive = |path: &Path| {
            let path = path.display();
            ["-drive".to_owned(), format!("file={path},format=raw,if=virtio,snapshot=on")]
        };
        let options = [drive(self.disk), drive(self.data)].concat();
        let initramfs = self.initramfs()?;
        let emulator = Emulator {
            kernel: &self.kernel.image,
            initramfs: &initramfs,
            memory_mb: self.memory_mb,
            options: &options,
        };
        emulator.run(limit, show)
    }

    fn initramfs(&self) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for dir in ["dev", "proc", "sys", "root", "run", "tmp"] {
            archive.directory(dir)?;
        }
        archive.modules(self.kernel, &[&DISK_MODULES, self.modules].concat())?;
        for (name, package) in TOOLS {
            archive.program(name, &archive::installed(name, package)?)?;
        }
        archive.file("init", INIT.as_bytes())?;
        archive.finish()
    }
}

/// Writes a directory as a file system of `size_mb`, for [`SystemdMachine::data`].
pub fn write_data(dir: &Path, file: &Path, size_mb: u32) -> Result<()> {
    let size = format!("{size_mb}M");
    let options = ["-q", "-t", "ext4", "-O", "^has_journal", "-d"].map(AsRef::as_ref);
    let arguments = options.into_iter().chain([dir.as_os_str(), file.as_os_str(), size.as_ref()]);
    checked("mke2fs", arguments).context("write the second disk").map(drop)
}
