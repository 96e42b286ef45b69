//! Where a port's links and maps are pinned, and what is there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::port::Port;

/// The directory of all pins.
pub const PIN_ROOT: &str = "/sys/fs/bpf/vsnoop";

/// Maps that are pinned, by their names in bpf/maps.h; `policy` and `port` are
/// the data sections of the object.
pub(crate) const MAPS: [&str; 8] =
    ["flows", "embryos", "stats", "port_list", "prefix_list", "meta", "policy", "port"];

pub(crate) const LINKS: [&str; 2] = ["link_to_vm", "link_from_vm"];

/// The directory of one tap. `netns`: inode of its network namespace.
pub(crate) fn directory(netns: u64, ifindex: u32) -> PathBuf {
    Path::new(PIN_ROOT).join(format!("{netns}-{ifindex}"))
}

/// A directory under [`PIN_ROOT`] that is no port of this version.
#[derive(Debug)]
pub struct Damaged {
    /// The directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Damaged {
    /// Takes it away all the same: hooks first, then the rest.
    pub fn remove(&self) -> Result<()> {
        remove(&self.path)
    }
}

/// What [`Port::list`] finds.
#[derive(Debug)]
pub enum Listed {
    /// A working attachment.
    Port(Box<Port>),
    /// Left-overs, or another version's state.
    Damaged(Damaged),
}

/// All entries of [`PIN_ROOT`], in a stable order.
pub(crate) fn entries() -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(PIN_ROOT) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(format!("read {PIN_ROOT}"))(error)),
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// Removes a port's directory: unpinning the links takes the hooks off, to_vm
/// first, so that no segment is acknowledged whose ACK nobody would honour.
/// Somebody else may be removing it too (a command and the helper, when a tap was
/// deleted): what is gone already is as it should be.
pub(crate) fn remove(path: &Path) -> Result<()> {
    for link in LINKS {
        let _ = fs::remove_file(path.join(link));
    }
    if !path.is_dir() {
        return gone(path, fs::remove_file(path));
    }
    match fs::read_dir(path) {
        Ok(entries) => {
            for entry in entries.flatten() {
                let path = entry.path();
                let removed =
                    if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) };
                gone(&path, removed)?;
            }
        }
        Err(error) => gone(path, Err(error))?,
    }
    gone(path, fs::remove_dir(path))
}

fn gone(path: &Path, removed: std::io::Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
