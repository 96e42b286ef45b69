//! Commands that change attachments exclude each other by a lock; `off --all` does not wait for it.
//!
//! A user who can open a file, to read it even, can hold its lock: others than the owner cannot
//! open these.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::error::{Error, Result};

/// Lock files live here; gone after a reboot, as the attachments are.
pub const DIRECTORY: &str = "/run/vsnoop";

const PATIENCE: Duration = Duration::from_secs(20);
/// Mode of lock files.
const PRIVATE: u32 = 0o600;

/// Held by a command while it changes attachments.
#[derive(Debug)]
pub struct CommandLock {
    _file: Flock<File>,
}

impl CommandLock {
    /// Waits for the lock.
    pub fn take() -> Result<Self> {
        let start = Instant::now();
        loop {
            if let Some(lock) = Self::try_take()? {
                return Ok(lock);
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Locked {
                    file: format!("{DIRECTORY}/command.lock"),
                    seconds: PATIENCE.as_secs(),
                });
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// `None` if another process has it.
    pub fn try_take() -> Result<Option<Self>> {
        Ok(try_lock("command.lock")?.map(|file| Self { _file: file }))
    }
}

/// Takes a lock file; `None` if another process has it.
pub fn try_lock(name: &str) -> Result<Option<Flock<File>>> {
    fs::create_dir_all(DIRECTORY).map_err(Error::file("create", DIRECTORY))?;
    let path = Path::new(DIRECTORY).join(name);
    try_lock_file(open(&path)?, &path)
}

/// Creates it if it is not there.
fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(Error::file("open", path))?;
    close_to_others(&file);
    Ok(file)
}

/// Earlier versions let others read lock files. One that stays open to others does its work all the
/// same, so a failure is none of the caller's.
fn close_to_others(file: &File) {
    let Ok(found) = file.metadata() else { return };
    if found.uid() == geteuid().as_raw() && found.mode() & 0o077 != 0 {
        let _ = file.set_permissions(Permissions::from_mode(PRIVATE));
    }
}

/// Takes the lock of a directory that exists; `None` if another process has it.
pub fn try_lock_directory(path: &Path) -> Result<Option<Flock<File>>> {
    try_lock_file(File::open(path).map_err(Error::file("open", path))?, path)
}

fn try_lock_file(file: File, path: &Path) -> Result<Option<Flock<File>>> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(Error::file("lock", path)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let directory =
                std::env::temp_dir().join(format!("vsnoop-lock-{}", std::process::id()));
            fs::create_dir(&directory).unwrap();
            Self(directory)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn other_users_cannot_open_a_lock_new_or_of_an_earlier_version() {
        let scratch = Scratch::new();
        let mode = |file: &File| file.metadata().unwrap().mode() & 0o777;
        let path = scratch.0.join("new.lock");
        assert_eq!(mode(&open(&path).unwrap()), 0o600);
        let path = scratch.0.join("old.lock");
        fs::write(&path, "7").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let lock = try_lock_file(open(&path).unwrap(), &path).unwrap().unwrap();
        assert_eq!((mode(&lock), fs::read_to_string(&path).unwrap()), (0o600, "7".into()));
        assert!(try_lock_file(open(&path).unwrap(), &path).unwrap().is_none(), "it is locked");
        std::os::unix::fs::symlink(&path, scratch.0.join("link.lock")).unwrap();
        open(&scratch.0.join("link.lock")).unwrap_err();
    }
}
