//! Commands that change attachments exclude each other by a lock; `off --all` does not wait for it.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::{Error, Result};

/// Lock files live here; gone after a reboot, as the attachments are.
pub const DIRECTORY: &str = "/run/vsnoop";

const PATIENCE: Duration = Duration::from_secs(20);

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
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(Error::file("open", &path))?;
    try_lock_file(file, &path)
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
