//! Pins of a port: its links and maps.
//!
//! A directory has the pins of one port; its name is made of the tap's network namespace and index.
//! Its inode distinguishes two attachments of the same tap. Two symbolic links in it lead to its
//! programs, which are pinned in a directory beside it, and to its slot there.
//!
//! | stage | name of the directory | next step |
//! |---|---|---|
//! | arriving | `arriving-PID-START-N` | pin all; attach the hooks, pin their links; rename |
//! | listed | the port's | rename it, which sets it aside |
//! | leaving | `leaving-PID-N` | detach the hooks; empty the slot; unlink the pins |
//!
//! The renames are atomic, so a port is listed completely or not at all. An arriving directory
//! whose process is gone was abandoned ([`crate::Port::cut_short`]): any process may remove it.
//!
//! The hooks are detached through their links. Unlinking the pins would detach them, too, but only
//! some tens of milliseconds later, when the kernel drops the last reference. The slot is among
//! those of the ports that share programs (src/programs.rs).
//!
//! A process that renames a directory, or empties a slot, has the lock of [`PIN_ROOT`]. So the link
//! of a listed port is off its tap only because the tap was deleted, or because other tools were
//! used on it, which leaves its connections without hooks in the same way. A process that is killed
//! after setting a port aside leaves its directory ([`crate::Port::cut_short`]); any process may
//! continue, even beside the first one.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use crate::error::{Error, Result, Unready};
use crate::link::PinnedLink;

/// The directory of all pins.
pub const PIN_ROOT: &str = "/sys/fs/bpf/vsnoop";

/// In the order in which the hooks are detached: to_vm first, so that no segment is acknowledged
/// early once from_vm is off.
pub(crate) const LINKS: [&str; 2] = ["link_to_vm", "link_from_vm"];

/// An empty directory in a port's: its lock is held while the memory of the hold is changed, or the
/// slot emptied.
pub(crate) const MEMORY: &str = "memory";

/// Mode of directories.
const PRIVATE: u32 = 0o700;

/// How long to wait for a lock. A process that is not stopped holds it for some tens of
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
const MOMENT: Duration = Duration::from_millis(50);

/// Prefix of directories of shared programs.
pub(crate) const PROGRAMS_PREFIX: &str = "programs-";
/// Prefix of directories that were set aside.
const ASIDE: &str = "leaving-";
/// Prefix of directories that are not ports yet; id and start time of their process follow.
const ARRIVING: &str = "arriving-";

/// Stage of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Ports, damaged or not.
    Listed,
    /// Set aside.
    Leaving,
    /// Arriving, and their process is gone.
    CutShort,
    /// Arriving, whether their process lives or not.
    Arriving,
}

impl Stage {
    fn has(self, path: &Path) -> bool {
        match self {
            Self::Listed => !is_aside(path) && !is_arriving(path) && !is_programs(path),
            Self::Leaving => is_aside(path),
            Self::CutShort => is_arriving(path) && !maker_lives(path),
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

/// Inode, which distinguishes this attachment from others of the same tap; `None` if there is none.
pub(crate) fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
}

/// Inode of an open directory.
pub(crate) fn inode_of(directory: &File) -> Option<u64> {
    directory.metadata().ok().map(|found| found.ino())
}

/// Waits for the lock of a directory; the kernel releases it with the file, or the process. `how`:
/// `LOCK_SH` or `LOCK_EX`.
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

/// Takes the exclusive lock of the directory `path`. The wait has a bound; the error of a timeout
/// names the directory.
pub(crate) fn lock_directory(directory: &File, path: &Path) -> Result<()> {
    flock_in_time(directory, libc::LOCK_EX).map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => {
            Unready::Locked { directory: path.into(), seconds: PATIENCE.as_secs() }.into()
        }
        _ => Error::io(format!("lock {}", path.display()))(error),
    })
}

/// [`flock`] with a bound on the wait, because the holder may be stopped. After one timeout this
/// process waits for a moment only.
pub(crate) fn flock_in_time(directory: &File, how: i32) -> std::io::Result<()> {
    static IN_VAIN: AtomicBool = AtomicBool::new(false);
    let patience = if IN_VAIN.load(Ordering::Relaxed) { MOMENT } else { PATIENCE };
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

/// While it lives, no other process renames ports, or assigns or empties slots.
pub(crate) struct Lock {
    _root: File,
}

/// Takes the lock of [`PIN_ROOT`]; `None` if nothing is pinned.
pub(crate) fn lock() -> Result<Option<Lock>> {
    loop {
        let root = match File::open(PIN_ROOT) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::io(format!("lock {PIN_ROOT}")))?,
        };
        lock_directory(&root, Path::new(PIN_ROOT))?;
        // Removed during the wait: other processes lock its successor.
        if inode_of(&root) == inode(Path::new(PIN_ROOT)) {
            return Ok(Some(Lock { _root: root }));
        }
    }
}

/// The lock for renaming a port's directory. `None` after a timeout: the hooks must be detached all
/// the same, and a slot is emptied only after a check that it is still the port's.
fn lock_to_rename() -> Option<Lock> {
    lock().ok().flatten()
}

/// While it lives, the slot stays that of the port in `dir`. An error (not found) if that is no
/// longer the one with this inode.
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

/// Was the directory with this inode set aside?
pub(crate) fn is_leaving(inode: u64) -> bool {
    entries(Stage::Leaving)
        .is_ok_and(|found| found.iter().any(|dir| self::inode(dir) == Some(inode)))
}

fn begins(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(with.as_bytes()))
}

pub(crate) fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Is this a directory of programs?
pub(crate) fn is_programs(dir: &Path) -> bool {
    dir.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(PROGRAMS_PREFIX.as_bytes()))
}

/// Creates a directory that other users cannot open: who can open it can hold its lock.
pub(crate) fn create_private(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(PRIVATE).create(path)
}

/// Creates the directory of all pins with [`create_private`]. One that an earlier version has left
/// open to others is closed to them.
pub(crate) fn create_root(path: &Path) -> Result<()> {
    let created = match create_private(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => close_to_others(path),
        created => created,
    };
    created.map_err(Error::io(format!("create {}", path.display())))
}

/// An error if it is another user's, who could rename and remove what is in it: where anybody may
/// make directories beside it, that user has made it.
fn close_to_others(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY);
    let directory = match options.open(path) {
        // Another process has removed it since.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let found = directory.metadata()?;
    if ![0, geteuid().as_raw()].contains(&found.uid()) {
        let reason =
            format!("user {} has made it; remove it: rm -r {}", found.uid(), path.display());
        return Err(std::io::Error::other(reason));
    }
    if found.mode() & 0o077 != 0 {
        directory.set_permissions(Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

/// Creates a directory for an attach.
pub(crate) fn create_arrival() -> Result<PathBuf> {
    create_root(Path::new(PIN_ROOT))?;
    let pid = std::process::id();
    let started = start_time(pid).unwrap_or_default();
    for count in 0u32.. {
        let path = Path::new(PIN_ROOT).join(format!("{ARRIVING}{pid}-{started}-{count}"));
        match create_private(&path) {
            Ok(()) => return Ok(path),
            // Another thread's.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(format!("create {}", path.display()))(error)),
        }
    }
    unreachable!("a process has fewer directories than there are numbers")
}

/// Renames it to the port's directory; false if that port exists.
pub(crate) fn arrive(arrival: &Path, dir: &Path) -> Result<bool> {
    use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
    match fs::rename(arrival, dir) {
        Ok(()) => Ok(true),
        Err(error) if [AlreadyExists, DirectoryNotEmpty].contains(&error.kind()) => Ok(false),
        Err(error) => Err(Error::io(format!("rename {}", arrival.display()))(error)),
    }
}

/// Does the process of an arriving directory live? A zombie does not continue.
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

/// Sets a directory aside, and returns its new path. `None` if it is gone: another process was
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

/// Detaches the hooks. A pin that is missing, or no link, has no hook to detach.
pub(crate) fn take_hooks_off(path: &Path) -> Result<()> {
    let split = path.join(crate::split::DIRECTORY);
    let result = take_links_off(&split, crate::split::LINKS.iter().map(|(name, _)| *name));
    result.and(take_links_off(path, LINKS.into_iter()))
}

/// Detaches what these links in a directory have attached.
pub(crate) fn take_links_off<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut result = Ok(());
    for name in names {
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

/// Unlinks the pins. Another process may do so at the same time: a missing pin is no error.
pub(crate) fn clear(path: &Path) -> Result<()> {
    // A symbolic link does not count as a directory.
    let is_dir = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if !is_dir(path) {
        return gone(path, fs::remove_file(path));
    }
    match fs::read_dir(path) {
        Ok(entries) => {
            for entry in entries.flatten() {
                let path = entry.path();
                if is_dir(&path) {
                    clear(&path)?;
                } else {
                    gone(&path, fs::remove_file(&path))?;
                }
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
