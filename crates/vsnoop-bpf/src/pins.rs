//! Where a port's links and maps are pinned, and how they go.
//!
//! A directory holds the pins of one port, under a name that follows from the tap. Its inode tells
//! two attachments of the same tap apart. Two symbolic links in it lead to its programs, whose
//! pins are in a directory beside it, and to its slot there.
//!
//! A port comes in three steps, of which the last is atomic:
//!
//! 1. everything is pinned in a directory whose name tells who makes it (*arriving*);
//! 2. the hooks are put on the tap, and their links are pinned there as well;
//! 3. the directory is renamed to the port's.
//!
//! A process that is killed before the last step leaves its directory ([`crate::Port::cut_short`]),
//! which nobody takes for a port. Whoever finds it, and that its process has gone, takes it away.
//!
//! A port goes in three steps, of which the first is atomic:
//!
//! 1. its directory is renamed (*set aside*): whoever looks for ports finds a whole one, or none;
//! 2. the hooks are taken off the tap through their links. Unlinking the pins would do so too, but
//!    some tens of milliseconds later, when the kernel lets go of the last reference;
//! 3. its slot among those that share its programs is emptied (src/programs.rs), and the pins are
//!    unlinked.
//!
//! Who renames or empties has the lock of [`PIN_ROOT`]. So the link of a listed port is off its
//! tap only because the tap was deleted (or somebody used other tools on it, which leaves its
//! connections as little looked after). A process that is killed after the first step leaves a
//! directory that was set aside ([`crate::Port::cut_short`]); whoever finds it may go on with the
//! second step, also beside the process that began.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::link::PinnedLink;

/// The directory of all pins.
pub const PIN_ROOT: &str = "/sys/fs/bpf/vsnoop";

/// to_vm first: the hooks go in this order, so that no segment is acknowledged
/// whose ACK nobody would honour.
pub(crate) const LINKS: [&str; 2] = ["link_to_vm", "link_from_vm"];

/// An empty directory in that of a port, whose lock has who changes the memory of its hold, or
/// empties its slot.
pub(crate) const MEMORY: &str = "memory";

/// The lock is had for some tens of milliseconds, by what is not stopped.
const PATIENCE: Duration = Duration::from_secs(3);

/// Begins the names of directories of programs, which ports share.
pub(crate) const PROGRAMS_PREFIX: &str = "programs-";
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
    /// Arriving, whether their maker lives or not.
    Arriving,
}

impl Stage {
    fn has(self, path: &Path) -> bool {
        match self {
            Self::Listed => !is_aside(path) && !is_arriving(path) && !is_programs(path),
            Self::Leaving => is_aside(path),
            Self::Abandoned => is_arriving(path) && !maker_lives(path),
            Self::Arriving => is_arriving(path),
        }
    }
}

/// The directory of one tap. `netns`: inode of its network namespace.
pub(crate) fn directory(netns: u64, ifindex: u32) -> PathBuf {
    Path::new(PIN_ROOT).join(format!("{netns}-{ifindex}"))
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

/// The same of an open directory.
pub(crate) fn inode_of(directory: &File) -> Option<u64> {
    directory.metadata().ok().map(|found| found.ino())
}

/// Waits until it has the lock of a directory; the kernel lets it go with the file, or the
/// process. `how`: `LOCK_SH` or `LOCK_EX`.
pub(crate) fn flock(directory: &File, how: i32) -> std::io::Result<()> {
    loop {
        // SAFETY: an open descriptor and a number.
        if unsafe { libc::flock(directory.as_raw_fd(), how) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The same with a bound on the wait, because the process that has the lock may be stopped. After
/// one wait in vain this process only tries.
pub(crate) fn flock_in_time(directory: &File, how: i32) -> std::io::Result<()> {
    static IN_VAIN: AtomicBool = AtomicBool::new(false);
    let patience = if IN_VAIN.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
    let since = Instant::now();
    loop {
        match flock(directory, how | libc::LOCK_NB) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if since.elapsed() >= patience {
                    IN_VAIN.store(true, Ordering::Relaxed);
                    return Err(std::io::ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(2));
            }
            other => {
                IN_VAIN.store(false, Ordering::Relaxed);
                return other;
            }
        }
    }
}

/// While it lives, no other process gives ports other names, slots to ports, or takes them back.
pub(crate) struct Lock {
    _root: File,
}

/// `None` when nothing is pinned at all.
pub(crate) fn lock() -> Result<Option<Lock>> {
    let what = || format!("lock {PIN_ROOT}");
    loop {
        let root = match File::open(PIN_ROOT) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::io(what()))?,
        };
        flock_in_time(&root, libc::LOCK_EX).map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => Error::Unready(format!(
                "another process has had the lock of {PIN_ROOT} for {} s (is it stopped?); end it \
                 and try again",
                PATIENCE.as_secs()
            )),
            _ => Error::io(what())(error),
        })?;
        // Removed while we waited: other processes lock the directory that is there now.
        if inode_of(&root) == inode(Path::new(PIN_ROOT)) {
            return Ok(Some(Lock { _root: root }));
        }
    }
}

/// Before a port's directory is renamed. Without the lock where it cannot be had in time: the
/// hooks must come off all the same, and a slot is emptied only after a check that it is still the
/// port's.
fn lock_to_rename() -> Option<Lock> {
    lock().ok().flatten()
}

/// While it lives, the slot of the port in `dir` stays its own. An error (not found) when that is
/// no longer the one with this inode.
pub(crate) fn keep_slot(dir: &Path, inode: Option<u64>) -> std::io::Result<File> {
    let memory = File::open(dir.join(MEMORY))?;
    flock(&memory, libc::LOCK_SH)?;
    if self::inode(dir) != inode {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    Ok(memory)
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

/// Is this no port's directory, but one of programs?
pub(crate) fn is_programs(dir: &Path) -> bool {
    dir.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(PROGRAMS_PREFIX.as_bytes()))
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

/// When a process was started, in ticks since the machine was (proc(5), field 22 of stat); `None`
/// when it has ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name, in brackets, may have blanks.
    let mut after_name = stat.rsplit_once(") ")?.1.split(' ');
    let has_ended = matches!(after_name.next()?, "Z" | "X");
    let started = after_name.nth(18)?.parse().ok()?;
    (!has_ended).then_some(started)
}

/// The first step; where the directory is now. `None` when it is not there: somebody else was
/// faster.
pub(crate) fn set_aside(path: &Path) -> Result<Option<PathBuf>> {
    let _lock = lock_to_rename();
    rename_aside(path)
}

/// [`set_aside`] without taking the lock: the caller has it.
pub(crate) fn rename_aside(path: &Path) -> Result<Option<PathBuf>> {
    /// No name is used again: another process may still act on the directory that had it.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
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
}

/// The second step. What is no link, or not there, has no hook that could be taken off.
pub(crate) fn take_hooks_off(path: &Path) -> Result<()> {
    let mut result = Ok(());
    for name in LINKS {
        let what = || format!("take {} off the tap", path.join(name).display());
        let taken_off = match PinnedLink::open(&path.join(name)) {
            Ok(link) if link.info().is_ok() => link.detach(),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        result = result.and(taken_off.map_err(|error| Error::bpf(what())(error)));
    }
    result
}

/// The third step. Somebody else may be at it too: what is gone already is as it should be.
pub(crate) fn clear(path: &Path) -> Result<()> {
    // A symbolic link is none, whatever it leads to.
    let is_dir = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if !is_dir(path) {
        return gone(path, fs::remove_file(path));
    }
    match fs::read_dir(path) {
        Ok(entries) => {
            for entry in entries.flatten() {
                let path = entry.path();
                let removed =
                    if is_dir(&path) { fs::remove_dir(&path) } else { fs::remove_file(&path) };
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
