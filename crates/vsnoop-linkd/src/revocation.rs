//! Revocation lists: looked at again and again, so that a newer one counts without a command.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::config::Config;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Identifies a version of a file: inode, size, and when it was written (seconds and
/// nanoseconds).
type Look = Option<(u64, u64, i64, i64)>;

pub struct RevocationLists {
    files: Vec<(PathBuf, Look)>,
    looked: Instant,
}

impl RevocationLists {
    pub fn of(config: &Config) -> Self {
        let files = config.authority.iter().flat_map(|authority| &authority.lists);
        let files = files.map(|file| (file.clone(), look(file))).collect();
        Self { files, looked: Instant::now() }
    }

    /// Whether they are to be read: a file has changed since it was looked at last, or the last
    /// reading has `failed`. Asks now and then only.
    pub fn are_due(&mut self, failed: bool) -> bool {
        if self.looked.elapsed() < LOOK {
            return false;
        }
        self.looked = Instant::now();
        let mut is_other = failed;
        for (file, before) in &mut self.files {
            let now = look(file);
            is_other |= now != *before;
            *before = now;
        }
        is_other
    }
}

fn look(file: &PathBuf) -> Look {
    let found = fs::metadata(file).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}
