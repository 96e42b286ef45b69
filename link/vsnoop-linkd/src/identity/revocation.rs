//! Revocation lists: their files are polled, so that a newer list counts without a command.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Config;

/// Interval of polls.
const POLL: Duration = Duration::from_secs(2);

/// Identifies the contents of a file.
#[derive(PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    bytes: u64,
    written_s: i64,
    written_ns: i64,
}

pub struct RevocationLists {
    /// Each with its version at the last poll; `None`: it could not be read.
    files: Vec<(PathBuf, Option<FileVersion>)>,
    polled: Instant,
}

impl RevocationLists {
    pub fn new(config: &Config) -> Self {
        let files = config.authority.iter().flat_map(|authority| &authority.lists);
        let files = files.map(|file| (file.clone(), file_version(file))).collect();
        Self { files, polled: Instant::now() }
    }

    /// Whether the lists must be read: a file has changed since the last poll, or the last reading
    /// has `failed`. Returns `false` between two polls.
    pub fn are_due(&mut self, failed: bool) -> bool {
        if self.polled.elapsed() < POLL {
            return false;
        }
        self.polled = Instant::now();
        let mut is_other = failed;
        for (file, before) in &mut self.files {
            let now = file_version(file);
            is_other |= now != *before;
            *before = now;
        }
        is_other
    }
}

fn file_version(file: &Path) -> Option<FileVersion> {
    let found = fs::metadata(file).ok()?;
    Some(FileVersion {
        inode: found.ino(),
        bytes: found.size(),
        written_s: found.mtime(),
        written_ns: found.mtime_nsec(),
    })
}
