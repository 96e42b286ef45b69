//! Notes about bytes that a VM has not acknowledged when its tap is deleted. The process that takes
//! the port off writes them ([`crate::port_removal`]; not `off --all`, which tells its caller
//! itself). The service reads them: it knows whether the VM has migrated.
//!
//! A note is a symbolic link in `/run/vsnoop/undelivered`: its name is the attachment, its target
//! says the rest. So it is made in one step, and no note is ever half written. The service removes
//! each note that it has read. Where no service runs notes stay, and beyond [`MOST`] of them none
//! is made.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use vsnoop_bpf::ServiceMark;

use crate::error::{Error, Result};
use crate::lock;
use crate::ports::Attached;

/// Below [`lock::DIRECTORY`].
const NAME: &str = "undelivered";

/// A service that runs reads the notes at once.
const MOST: usize = 1024;

/// Bytes that one attachment did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// Inode of its network namespace.
    pub netns: u64,
    pub ifindex: u32,
    /// ID of the attachment ([`vsnoop_bpf::Port::id`]).
    pub id: u64,
    /// The service had paused it for a migration.
    pub is_migrating: bool,
    pub bytes: u64,
    pub flows: u64,
    /// Name of the tap.
    pub name: String,
}

impl Undelivered {
    /// Reads them of an attachment; `None` if there are none, or a command has attached it.
    pub fn find_undelivered(attached: &Attached) -> Result<Option<Self>> {
        let (flows, bytes) = attached.port.outstanding()?;
        let is_of_service = ServiceMark::from_meta(&attached.meta).is_some();
        Ok((is_of_service && bytes > 0).then(|| Self {
            netns: attached.meta.netns,
            ifindex: attached.meta.ifindex,
            id: attached.port.id(),
            is_migrating: attached.migrating,
            bytes,
            flows,
            name: attached.name.clone(),
        }))
    }

    fn file_name(&self) -> String {
        format!("{}-{}-{}", self.netns, self.ifindex, self.id)
    }

    fn target(&self) -> String {
        format!("{} {} {} {}", u8::from(self.is_migrating), self.bytes, self.flows, self.name)
    }

    /// `None`: this is not a note.
    fn parse(name: &str, target: &str) -> Option<Self> {
        let mut ids = name.split('-');
        let mut words = target.splitn(4, ' ');
        let found = Self {
            netns: ids.next()?.parse().ok()?,
            ifindex: ids.next()?.parse().ok()?,
            id: ids.next()?.parse().ok()?,
            is_migrating: words.next()? == "1",
            bytes: words.next()?.parse().ok()?,
            flows: words.next()?.parse().ok()?,
            name: words.next()?.to_owned(),
        };
        // Numbers are read in other forms as well, as with a sign.
        (found.file_name() == name && found.target() == target).then_some(found)
    }
}

/// The directory of notes.
#[derive(Debug)]
pub struct Notes {
    directory: PathBuf,
}

impl Notes {
    pub fn of_host() -> Self {
        Self { directory: Path::new(lock::DIRECTORY).join(NAME) }
    }

    /// Makes the directory if it is not there.
    pub fn create(&self) -> Result<&Path> {
        fs::create_dir_all(&self.directory).map_err(Error::file("create", &self.directory))?;
        Ok(&self.directory)
    }

    /// Adds a note, if the attachment has none and there are fewer than [`MOST`].
    pub fn add(&self, left: &Undelivered) -> Result<()> {
        let path = self.create()?.join(left.file_name());
        if self.entries().count() >= MOST {
            tracing::warn!("{} is full: the service does not read it", self.directory.display());
            return Ok(());
        }
        match symlink(left.target(), &path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(Error::file("create", &path)(error))
            }
            _ => Ok(()),
        }
    }

    pub fn remove(&self, left: &Undelivered) -> Result<()> {
        let path = self.directory.join(left.file_name());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::file("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// All notes, without entries that are not understood.
    pub fn find(&self) -> Vec<Undelivered> {
        let note = |entry: fs::DirEntry| {
            let target = fs::read_link(entry.path()).ok()?;
            Undelivered::parse(entry.file_name().to_str()?, target.to_str()?)
        };
        self.entries().filter_map(note).collect()
    }

    /// Notes that are made side by side may be a few more than [`MOST`].
    fn entries(&self) -> impl Iterator<Item = fs::DirEntry> {
        fs::read_dir(&self.directory).into_iter().flatten().flatten().take(2 * MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes with the test.
    struct Scratch(Notes);

    impl Scratch {
        fn new(test: &str) -> Self {
            let name = format!("vsnoop-undelivered-{}-{test}", std::process::id());
            Self(Notes { directory: std::env::temp_dir().join(name) })
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.directory);
        }
    }

    fn note(id: u64) -> Undelivered {
        Undelivered {
            netns: 4026531840,
            ifindex: 7,
            id,
            is_migrating: id == 2,
            bytes: 60_000,
            flows: 2,
            name: "vm-1 0".to_owned(),
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_made_until_it_is_removed() {
        let scratch = Scratch::new("kept");
        let notes = &scratch.0;
        assert_eq!(notes.find(), [], "there is no directory");
        notes.remove(&note(1)).unwrap();
        let other = Undelivered { bytes: 1, ..note(1) };
        for left in [note(1), other, note(2)] {
            notes.add(&left).unwrap();
        }
        let mut found = notes.find();
        found.sort_by_key(|left| left.id);
        assert_eq!(found, [note(1), note(2)], "the first of an attachment counts");
        notes.remove(&note(1)).unwrap();
        assert_eq!(notes.find(), [note(2)]);
    }

    #[test]
    fn there_are_so_many_notes_at_most() {
        let scratch = Scratch::new("most");
        (0..MOST as u64 + 10).for_each(|id| scratch.0.add(&note(id)).unwrap());
        assert_eq!(scratch.0.find().len(), MOST);
    }

    #[test]
    fn what_is_no_note_is_none() {
        let scratch = Scratch::new("none");
        let directory = scratch.0.create().unwrap();
        fs::write(directory.join("1-2-3"), "1 2 3 vnet0").unwrap();
        for (name, target) in [
            ("1-2-4", "1 2 vnet0"),
            ("1-2-5", "yes 2 3 vnet0"),
            ("1-2-6", "1 -2 3 vnet0"),
            ("1-2-+7", "1 2 3 vnet0"),
            ("1-2", "1 2 3 vnet0"),
            ("1-2-8-9", "1 2 3 vnet0"),
        ] {
            symlink(target, directory.join(name)).unwrap();
        }
        assert_eq!(scratch.0.find(), []);
    }
}
