//! A kernel that runs as a process of the host (User Mode Linux), from the distribution's package.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::packages::{Source, unavailable};

const PACKAGE: &str = "user-mode-linux";
const PROGRAM: &str = "usr/bin/linux.uml";

/// Kernel and file system of a guest that is a process.
#[derive(Clone, Debug)]
pub struct UserModeImage {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
}

/// Returns the cached kernel, or downloads it.
pub fn prepare(dir: &Path) -> Result<PathBuf> {
    let unpacked = dir.join(PACKAGE);
    if !unpacked.is_dir() {
        let source = Source::own();
        if !source.known(PACKAGE) {
            return Err(unavailable(format!("apt knows no package {PACKAGE}")));
        }
        println!("guest kernel: downloading {PACKAGE} (unpacked into build/guest, not installed)");
        let made = source.unpack(&[PACKAGE], &unpacked, |staging| {
            fs::metadata(staging.join(PROGRAM)).map(drop).context("no kernel in its package")
        });
        made.map_err(|error| unavailable(format!("{PACKAGE} cannot be had: {error:#}")))?;
    }
    Ok(unpacked.join(PROGRAM))
}
