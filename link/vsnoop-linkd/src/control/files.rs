//! The files of a running link: NAME.lock and NAME.sock. A name is unique on a host, across network
//! namespaces.
//!
//! The link's process holds an exclusive lock on NAME.lock while it lives; the kernel frees it
//! however the process ends. A socket whose lock is free is stale, and a process that holds the
//! lock may remove it. Only a process with the exclusive lock removes the lock file: the link at
//! its end, or a process that finds the files of a killed link. A process that has locked a file
//! which was removed meanwhile tries again. Processes that look at the same time hold shared locks
//! and may keep each other from the exclusive one. Then the lock file stays, but the name is free,
//! and the next process that looks removes it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::error::{AlreadyUp, ControlError, Result};

/// Gone after a reboot, as the links are.
pub const DIRECTORY: &str = "/run/vsnoop/link";

/// A process that checks whether a link runs takes its lock for a moment: others retry this often,
/// at this interval.
const TRIES: u32 = 10;
const TRY_AGAIN: Duration = Duration::from_millis(7);

/// The paths of a link's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFiles {
    directory: PathBuf,
    name: String,
}

impl LinkFiles {
    pub fn new(name: &str) -> Self {
        Self::below(Path::new(DIRECTORY), name)
    }

    /// Elsewhere than in [`DIRECTORY`].
    pub fn below(directory: &Path, name: &str) -> Self {
        Self { directory: directory.to_owned(), name: name.to_owned() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn socket_path(&self) -> PathBuf {
        self.directory.join(format!("{}.sock", self.name))
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.join(format!("{}.lock", self.name))
    }

    /// Takes the name, with [`AlreadyUp`] when another process has it, and removes what one that
    /// was killed has left.
    pub(super) fn take_lock(&self) -> Result<Flock<File>> {
        // Only the innermost is private: others have files beside it.
        if let Some(parent) = self.directory.parent() {
            fs::create_dir_all(parent).map_err(ControlError::path("create", parent))?;
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(ControlError::path("create", &self.directory))?;
        let mut again = patience();
        let mut lock = loop {
            match self.try_lock(FlockArg::LockExclusiveNonblock)? {
                Some(lock) => break lock,
                None if again() => {}
                None => return Err(AlreadyUp(self.name.clone()).into()),
            }
        };
        lock.set_len(0)
            .and_then(|()| write!(lock, "{}", std::process::id()))
            .map_err(ControlError::path("write", self.lock_path()))?;
        self.remove_socket()?;
        Ok(lock)
    }

    /// Process id of the owner of the name, as it wrote it into the file.
    pub fn read_pid(&self) -> Option<i32> {
        fs::read_to_string(self.lock_path()).ok()?.trim().parse().ok()
    }

    /// Does a process have the name? Removes what one that was killed has left.
    pub fn is_taken(&self) -> Result<bool> {
        self.check_lock(patience())
    }

    /// Looks while `again` says so.
    fn check_lock(&self, mut again: impl FnMut() -> bool) -> Result<bool> {
        loop {
            // Shared: several may look at a time.
            match self.try_lock(FlockArg::LockSharedNonblock) {
                // Without a socket it is a link that begins or ends, or a process that cleans up.
                Ok(None) if self.socket_path().exists() || !again() => return Ok(true),
                Ok(None) => {}
                Ok(Some(lock)) => {
                    self.remove_socket()?;
                    drop(lock);
                    // Unless another process has taken the name by now, or looks just then.
                    if let Some(_lock) = self.try_lock(FlockArg::LockExclusiveNonblock)? {
                        self.remove_lock()?;
                    }
                    return Ok(false);
                }
                Err(error) if !is_missing(&error) => return Err(error),
                // Only the owner of a lock may remove the socket: create the lock file.
                Err(_) if self.socket_path().exists() => drop(self.open_lock(true)?),
                Err(_) => return Ok(false),
            }
        }
    }

    /// `None` when another process has the lock. Only an exclusive request makes the file.
    fn try_lock(&self, kind: FlockArg) -> Result<Option<Flock<File>>> {
        let path = self.lock_path();
        loop {
            let file = self.open_lock(matches!(kind, FlockArg::LockExclusiveNonblock))?;
            match Flock::lock(file, kind) {
                Ok(lock) if self.is_that_of(&lock)? => return Ok(Some(lock)),
                // Another link ended between open and lock. Each retry needs one more such end.
                Ok(_) => {}
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, errno)) => {
                    return Err(ControlError::path("lock", path)(errno));
                }
            }
        }
    }

    fn open_lock(&self, create: bool) -> Result<File> {
        let path = self.lock_path();
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(ControlError::path("open", path))
    }

    /// Whether this file is still the one at its path.
    fn is_that_of(&self, lock: &File) -> Result<bool> {
        let path = self.lock_path();
        let failed = |error| ControlError::path("look at", &path)(error);
        let ours = lock.metadata().map_err(failed)?;
        match fs::metadata(&path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Only under the lock.
    pub(super) fn remove_socket(&self) -> Result<()> {
        remove_file(&self.socket_path())
    }

    /// To be called only by the process that has taken the name, as its last step.
    pub(super) fn remove_lock(&self) -> Result<()> {
        remove_file(&self.lock_path())
    }
}

/// Whether to look again, after a moment, some times.
fn patience() -> impl FnMut() -> bool {
    let mut tries = 0..TRIES;
    move || {
        let again = tries.next().is_some();
        if again {
            thread::sleep(TRY_AGAIN);
        }
        again
    }
}

/// Removes a file; a missing one is no error.
fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ControlError::path("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Names of which there is a socket, of running links and of those that were killed.
pub(super) fn list_names(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(ControlError::path("look into", directory)(error));
        }
    };
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn is_missing(error: &ControlError) -> bool {
    let ControlError::Path { error, .. } = error else { return false };
    error.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// Each removes the file that the others have opened.
    #[test]
    fn a_name_is_had_by_one_at_a_time_while_links_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let files = LinkFiles::below(directory.path(), "office");
        let (is_had, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < 20_000 {
                        let lock = files.try_lock(FlockArg::LockExclusiveNonblock).unwrap();
                        let Some(lock) = lock else { continue };
                        assert!(!is_had.swap(true, Ordering::SeqCst), "two have the name");
                        taken.fetch_add(1, Ordering::Relaxed);
                        is_had.store(false, Ordering::SeqCst);
                        files.remove_lock().unwrap();
                        drop(lock);
                    }
                });
            }
        });
    }

    /// Leaves the files of a process that was killed.
    fn leave(files: &LinkFiles) {
        fs::write(files.lock_path(), "1").unwrap();
        fs::write(files.socket_path(), "").unwrap();
    }

    #[test]
    fn who_looks_removes_what_a_killed_link_has_left() {
        let directory = tempfile::tempdir().unwrap();
        let files = LinkFiles::below(directory.path(), "office");
        let left = || fs::read_dir(directory.path()).unwrap().count();
        leave(&files);
        assert!(!files.is_taken().unwrap());
        assert_eq!(left(), 0);
        // Another process has removed the lock alone.
        fs::write(files.socket_path(), "").unwrap();
        assert!(!files.is_taken().unwrap());
        assert_eq!(left(), 0);
        let _lock = files.take_lock().unwrap();
        assert!(files.is_taken().unwrap());
        assert_eq!(left(), 1);
    }

    #[test]
    fn nobody_who_tidies_up_is_taken_for_a_link() {
        const LOOKERS: usize = 4;
        const ROUNDS: usize = 200;
        // However long the others take on a busy host.
        let patient = || {
            thread::yield_now();
            true
        };
        let directory = tempfile::tempdir().unwrap();
        let files = LinkFiles::below(directory.path(), "office");
        let (together, mistaken) = (Barrier::new(LOOKERS + 1), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..LOOKERS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        together.wait();
                        mistaken.fetch_add(
                            files.check_lock(patient).unwrap().into(),
                            Ordering::Relaxed,
                        );
                        together.wait();
                    }
                });
            }
            for round in 0..ROUNDS {
                leave(&files);
                if round % 2 == 0 {
                    fs::remove_file(files.lock_path()).unwrap();
                }
                together.wait();
                together.wait();
            }
        });
        assert_eq!(mistaken.into_inner(), 0);
        // Concurrent look-ups may leave the lock's file; a single one removes it.
        assert!(!files.is_taken().unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let files = LinkFiles::below(directory.path(), "office");
        let lock = files.try_lock(FlockArg::LockExclusiveNonblock).unwrap().unwrap();
        assert!(files.is_that_of(&lock).unwrap());
        files.remove_lock().unwrap();
        assert!(!files.is_that_of(&lock).unwrap());
        let _other = files.try_lock(FlockArg::LockExclusiveNonblock).unwrap().unwrap();
        assert!(!files.is_that_of(&lock).unwrap());
    }
}
