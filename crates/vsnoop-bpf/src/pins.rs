//! Where a port's links and maps are pinned, and how they go.
//!
//! A directory holds the pins of one port, under a name that follows from the tap. Its inode tells two
//! attachments of the same tap apart.
//!
//! A port comes in three steps, of which the last is atomic:
//!
//! 1. everything is pinned in a directory whose name tells who makes it (*arriving*);
//! 2. the hooks are put on the tap, and their links are pinned there as well;
//! 3. the directory is renamed to the port's.
//!
//! A process that is killed before the last step leaves its directory ([`crate::Port::cut_short`]), which
//! nobody takes for a port. Whoever finds it, and that its process has gone, takes it away.
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
/// Begins the names of directories that are no ports yet; the process id and the start time of
/// their maker follow.
const ARRIVING: &str = "arriving-";

/// Which directories are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Ports, damaged or not.
    Listed,
    /// Set aside.
    Leaving,
    /// Arriving, and their maker has gone.
    Abandoned,
}

impl Stage {
    fn has(self, path: &Path) -> bool {
        match self {
            Self::Listed => !is_aside(path) && !is_arriving(path),
            Self::Leaving => is_aside(path),
            Self::Abandoned => is_arriving(path) && !maker_lives(path),
        }
    }
}

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
    /// Not damaged, but never a port: its maker was killed while it attached.
    pub fn is_arriving(&self) -> bool {
        is_arriving(&self.path)
    }

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

/// The entries of [`PIN_ROOT`] of one kind, in a stable order.
pub(crate) fn entries(stage: Stage) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(PIN_ROOT) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(format!("read {PIN_ROOT}"))(error)),
    };
    let paths = entries.filter_map(|e| Some(e.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths.filter(|path| stage.has(path)).collect();
    paths.sort();
    Ok(paths)
}

/// Tells this attachment from an earlier or later one of the same tap; `None` when there is none.
pub(crate) fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
}

pub(crate) fn is_aside(path: &Path) -> bool {
    begins(path, ASIDE)
}

pub(crate) fn is_arriving(path: &Path) -> bool {
    begins(path, ARRIVING)
}

fn begins(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(with.as_bytes()))
}

pub(crate) fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// A directory for a port that arrives.
pub(crate) fn create_arrival() -> Result<PathBuf> {
    fs::create_dir_all(PIN_ROOT).map_err(Error::io(format!("create {PIN_ROOT}")))?;
    let pid = std::process::id();
    let started = start_time(pid).unwrap_or_default();
    for count in 0u32.. {
        let path = Path::new(PIN_ROOT).join(format!("{ARRIVING}{pid}-{started}-{count}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            // Another thread's.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(format!("create {}", path.display()))(error)),
        }
    }
    unreachable!("a process has fewer directories than there are numbers")
}

/// Makes it the port's directory; false when that port exists.
pub(crate) fn arrive(arrival: &Path, dir: &Path) -> Result<bool> {
    use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
    match fs::rename(arrival, dir) {
        Ok(()) => Ok(true),
        Err(error) if [AlreadyExists, DirectoryNotEmpty].contains(&error.kind()) => Ok(false),
        Err(error) => Err(Error::io(format!("rename {}", arrival.display()))(error)),
    }
}

/// Of an arriving directory. A zombie does not go on.
fn maker_lives(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut numbers = name.trim_start_matches(ARRIVING).split('-').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(started))) = (numbers.next(), numbers.next()) else {
        return false;
    };
    u32::try_from(pid).is_ok_and(|pid| start_time(pid) == Some(started))
}

/// When a process was started, in ticks since the machine was (proc(5), field 22 of stat); `None` when
/// it has ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name, in brackets, may have blanks.
    let mut after_name = stat.rsplit_once(") ")?.1.split(' ');
    let has_ended = matches!(after_name.next()?, "Z" | "X");
    let started = after_name.nth(18)?.parse().ok()?;
    (!has_ended).then_some(started)
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
