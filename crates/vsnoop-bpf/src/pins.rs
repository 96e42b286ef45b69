//! Where a port's links and maps are pinned, and how they go.
//!
//! A directory holds the pins of one port, under a name that follows from the tap. Its inode tells two
//! attachments of the same tap apart.
//!
//! A port goes in three steps, of which the first is atomic:
//!
//! 1. its directory is renamed (*set aside*): whoever looks for ports finds a whole one, or none;
//! 2. the hooks are taken off the tap through their links. Unlinking the pins would do so too, but
//!    some tens of milliseconds later, when the kernel lets go of the last reference;
//! 3. the pins are unlinked.
//!
//! So the link of a listed port is off its tap only because the tap was deleted (or somebody used other
//! tools on it, which leaves its connections as little looked after). A process that is killed after the first step leaves a directory that was set aside ([`crate::Port::cut_short`]);
//! whoever finds it may go on with the second step, also beside the process that began.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::link::PinnedLink;
use crate::port::Port;

/// The directory of all pins.
pub const PIN_ROOT: &str = "/sys/fs/bpf/vsnoop";

/// Maps that are pinned, by their names in bpf/maps.h; `policy` and `port` are
/// the data sections of the object.
pub(crate) const MAPS: [&str; 14] = [
    "flows",
    "embryos",
    "stats",
    "port_list",
    "prefix_list",
    "meta",
    "policy",
    "port",
    "slabs",
    "failures",
    "doorbell",
    "uplink",
    "line",
    "shut",
];

/// Programs that user space runs.
pub(crate) const PROGRAMS: [&str; 3] = ["inject", "tend", "turn"];

/// to_vm first: the hooks go in this order, so that no segment is acknowledged
/// whose ACK nobody would honour.
pub(crate) const LINKS: [&str; 2] = ["link_to_vm", "link_from_vm"];

/// Begins the names of directories that were set aside.
const ASIDE: &str = "leaving-";

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

/// The entries of [`PIN_ROOT`] that were set aside, or those that were not, in a stable order.
pub(crate) fn entries(aside: bool) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(PIN_ROOT) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(format!("read {PIN_ROOT}"))(error)),
    };
    let paths = entries.filter_map(|e| Some(e.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths.filter(|path| is_aside(path) == aside).collect();
    paths.sort();
    Ok(paths)
}

/// Tells this attachment from an earlier or later one of the same tap; `None` when there is none.
pub(crate) fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
}

pub(crate) fn is_aside(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(ASIDE.as_bytes()))
}

/// The first step; where the directory is now. `None` when it is not there: somebody else was faster.
pub(crate) fn set_aside(path: &Path) -> Result<Option<PathBuf>> {
    for count in 0u32.. {
        let aside = Path::new(PIN_ROOT).join(format!("{ASIDE}{}-{count}", std::process::id()));
        // Another thread's, or left by a process that had the same id.
        if aside.exists() {
            continue;
        }
        return match fs::rename(path, &aside) {
            Ok(()) => Ok(Some(aside)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => continue,
            Err(error) => Err(Error::io(format!("set {} aside", path.display()))(error)),
        };
    }
    unreachable!("a process has fewer directories than there are numbers")
}

/// The second step. What is no link, or not there, has no hook that could be taken off.
pub(crate) fn take_hooks_off(path: &Path) -> Result<()> {
    let mut result = Ok(());
    for name in LINKS {
        if let Ok(link) = PinnedLink::open(&path.join(name))
            && link.info().is_ok()
        {
            let what = || format!("take {} off the tap", path.join(name).display());
            result = result.and(link.detach().map_err(|error| Error::bpf(what())(error)));
        }
    }
    result
}

/// All three steps, with whatever there is.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let path = if is_aside(path) { Some(path.to_owned()) } else { set_aside(path)? };
    let Some(path) = path else { return Ok(()) };
    // The pins go all the same: without them the kernel takes the hooks off by itself.
    let hooks = take_hooks_off(&path);
    clear(&path)?;
    hooks
}

/// The third step. Somebody else may be at it too: what is gone already is as it should be.
pub(crate) fn clear(path: &Path) -> Result<()> {
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
