//! How many lines of their log helper and engine have lost, in a file: no command can ask them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vsnoop_host::lock;

use super::lines_lost;
use crate::background::Role;

/// The note of this process, which has this role.
pub struct LossNote {
    path: PathBuf,
    noted: u64,
}

impl LossNote {
    pub fn from_role(role: Role) -> Self {
        Self::at(note_path(role))
    }

    fn at(path: PathBuf) -> Self {
        // Of an earlier process, which may have had the same id.
        let _ = fs::remove_file(&path);
        Self { path, noted: 0 }
    }

    /// Writes the number if it has changed.
    pub fn update(&mut self) {
        self.set_lost(lines_lost());
    }

    fn set_lost(&mut self, lost: u64) {
        // What cannot be written is tried again at the next look.
        if lost != self.noted && self.write(lost).is_ok() {
            self.noted = lost;
        }
    }

    fn write(&self, lost: u64) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, format!("{} {lost}\n", std::process::id()))?;
        fs::rename(&fresh, &self.path)
    }
}

/// Reads the note of the process with this id.
pub fn read_noted(role: Role, pid: i32) -> u64 {
    read(&note_path(role), pid)
}

fn read(path: &Path, pid: i32) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let of_process = text.strip_prefix(&format!("{pid} "));
    of_process.and_then(|lost| lost.trim().parse().ok()).unwrap_or(0)
}

fn note_path(role: Role) -> PathBuf {
    Path::new(lock::DIRECTORY).join(format!("{}-log.lost", role.command()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_of_the_process_that_wrote_it_and_goes_with_the_next() {
        let path = std::env::temp_dir().join(format!("vsnoop-note-{}", std::process::id()));
        let own = std::process::id() as i32;
        let mut note = LossNote::at(path.clone());
        assert_eq!(read(&path, own), 0);
        note.set_lost(7);
        note.set_lost(12);
        assert_eq!((read(&path, own), read(&path, own + 1)), (12, 0));
        drop(LossNote::at(path.clone()));
        assert_eq!(read(&path, own), 0);
    }
}
