//! The initramfs: our init, the modules with their order, and programs that were asked for.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::archive::{self, Archive};
use super::{kernel::Kernel, web};

const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];
const DISK_MODULES: [&str; 3] = ["virtio_blk", "ext4", "overlay"];
const FIREWALL_MODULES: [&str; 2] = ["nf_tables", "nft_numgen"];
/// Programs for `Command::Start`, with their packages.
const TOOLS: [(&str, &str); 2] = [("sh", "dash"), ("ip", "iproute2")];
const TOOL_MODULES: [&str; 1] = ["bonding"];

/// Optional parts of the initramfs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// nftables with its modules, for `Command::Firewall`.
    pub firewall: bool,
    /// DCTCP, a congestion control that reads marks.
    pub dctcp: bool,
    /// Modules for a root file system on a disk.
    pub disk: bool,
    /// nginx, for `Command::Web`, and BBR beside the kernel's own congestion control.
    pub web: bool,
    /// A shell and `ip`, for `Command::Start` without a disk, and bonds.
    pub tools: bool,
}

impl Options {
    pub fn file_name(self) -> String {
        let firewall = if self.firewall { "-firewall" } else { "" };
        let dctcp = if self.dctcp { "-dctcp" } else { "" };
        let disk = if self.disk { "-disk" } else { "" };
        let web = if self.web { "-web" } else { "" };
        let tools = if self.tools { "-tools" } else { "" };
        format!("initramfs{firewall}{dctcp}{disk}{web}{tools}.cpio")
    }
}

/// `dir`: where packages are unpacked.
pub fn write(
    path: &Path,
    dir: &Path,
    kernel: &Kernel,
    init: &Path,
    options: Options,
) -> Result<()> {
    let mut archive = Archive::default();
    for dir in ["dev", "proc", "sys", "bin", "modules"] {
        archive.directory(dir)?;
    }
    let init = fs::read(init).with_context(|| format!("read {}", init.display()))?;
    archive.file("init", &init)?;

    let mut wanted = MODULES.to_vec();
    if options.firewall {
        wanted.extend(FIREWALL_MODULES);
    }
    if options.dctcp {
        wanted.push("tcp_dctcp");
    }
    if options.disk {
        wanted.extend(DISK_MODULES);
    }
    if options.tools {
        wanted.extend(TOOL_MODULES);
    }
    if options.web {
        wanted.push("tcp_bbr");
    }
    archive.modules(kernel, &wanted)?;
    if options.firewall {
        archive.program("nft", &archive::installed("nft", "nftables")?)?;
    }
    if options.tools {
        for (name, package) in TOOLS {
            archive.program(name, &archive::installed(name, package)?)?;
        }
    }
    if options.web {
        web::add(&mut archive, dir)?;
    }
    write_whole(path, &archive.finish()?)
}

/// Writes the initramfs of a guest whose kernel has no modules and finds its network without them.
pub fn write_bare(path: &Path, init: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for dir in ["dev", "proc", "sys", "modules"] {
        archive.directory(dir)?;
    }
    let init = fs::read(init).with_context(|| format!("read {}", init.display()))?;
    archive.file("init", &init)?;
    archive.file("modules/order", b"")?;
    write_whole(path, &archive.finish()?)
}

/// Writes a file in one step, so that an interrupted run leaves the old one or none.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes).with_context(|| format!("write {}", partial.display()))?;
    fs::rename(&partial, path).with_context(|| format!("rename to {}", path.display()))
}
