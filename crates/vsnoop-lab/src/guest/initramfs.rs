//! The initramfs: our init, the modules with their order, and programs that were asked for.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::archive::{self, Archive};
use super::{Options, kernel::Kernel, web, write_whole};

const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];
const FIREWALL_MODULES: [&str; 2] = ["nf_tables", "nft_numgen"];

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
    archive.modules(kernel, &wanted)?;
    if options.firewall {
        archive.program("nft", &archive::installed("nft", "nftables")?)?;
    }
    if options.web {
        web::add(&mut archive, dir)?;
    }
    write_whole(path, &archive.finish()?)
}
