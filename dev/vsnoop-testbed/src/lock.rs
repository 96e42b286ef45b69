//! Files that a process locks (flock(2)) while it does what another one must not do beside it. The
//! kernel gives a lock back when its process ends, however it does.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::interrupt;

/// Between two attempts to get a lock.
const WAIT: Duration = Duration::from_millis(200);

/// `None`: another process has it.
pub fn try_lock(path: &Path) -> Result<Option<Flock<File>>> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(anyhow!("lock {}: {errno}", path.display())),
    }
}

/// Takes a lock. If another process has it, prints once that `holder` has the lock, and waits.
/// `holder` is a clause such as "another run begins or ends".
pub fn wait_for(path: &Path, holder: &str) -> Result<Flock<File>> {
    wait_and_say(path, holder, |text| eprintln!("{text}"))
}

fn wait_and_say(path: &Path, holder: &str, say: impl FnOnce(String)) -> Result<Flock<File>> {
    let mut say = Some(say);
    loop {
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        if let Some(say) = say.take() {
            say(format!("{holder}: waiting for it ({} is locked)", path.display()));
        }
        interrupt::check()?;
        thread::sleep(WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_lock_says_once_for_what() {
        let path = std::env::temp_dir().join(format!("vsnoop-lock-{}", std::process::id()));
        let other = try_lock(&path).unwrap().expect("nobody has it");
        assert!(try_lock(&path).unwrap().is_none());
        let mut said = Vec::new();
        let lock = wait_and_say(&path, "another run builds", |text| {
            said.push(text);
            drop(other);
        });
        let silent = {
            drop(lock.unwrap());
            wait_and_say(&path, "another run builds", |text| panic!("{text}"))
        };
        std::fs::remove_file(&path).unwrap();
        silent.unwrap();
        let expected = format!("another run builds: waiting for it ({} is locked)", path.display());
        assert_eq!(said, [expected]);
    }
}
