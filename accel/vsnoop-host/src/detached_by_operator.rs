//! Marks of taps that an operator has detached, and that the service leaves off: also one that
//! starts later, after a crash or an upgrade.
//!
//! A mark is an empty file in `/run/vsnoop/detached`, whose name says which tap is meant: the
//! cookie of its network namespace (`SO_NETNS_COOKIE`) and its index. The kernel gives no cookie
//! twice until it is booted again, and then `/run` is empty, too; the inode of a namespace, by
//! which attachments are known, may be that of a later one. A file is made and removed in one step,
//! so that no mark is ever half written, and commands and the service need no lock for it.
//!
//! `detach --until-start` adds `.start` to the name: the service removes such marks when it starts.
//!
//! The command sets a mark before it takes the hooks off, and removes it when it has attached the
//! tap again; the service removes those of taps that are gone, and all of them at a reload.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::lock;
use crate::system::netns::Netns;

/// Below [`lock::DIRECTORY`].
const NAME: &str = "detached";

/// Most marks that are kept; one more replaces the oldest. A host has far fewer taps: what adds up
/// are those of namespaces that the service does not look after any more.
const MOST: usize = 4096;

/// A tap: of the network namespace with this cookie, with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    pub netns_cookie: u64,
    pub ifindex: u32,
}

/// The end of a mark, besides a reload, a command that attaches the tap, and the tap's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Reload,
    /// The next start of the service.
    Start,
}

impl Until {
    const ALL: [Self; 2] = [Self::Reload, Self::Start];

    fn suffix(self) -> &'static str {
        match self {
            Self::Reload => "",
            Self::Start => ".start",
        }
    }
}

impl Mark {
    /// The mark of the tap in this network namespace with this index.
    pub fn from_device(netns: &Netns, ifindex: u32) -> Result<Self> {
        Ok(Self { netns_cookie: netns.cookie()?, ifindex })
    }

    fn file_name(self, until: Until) -> String {
        format!("{}-{}{}", self.netns_cookie, self.ifindex, until.suffix())
    }

    /// `None` of a name that no mark has.
    fn of_name(name: &str) -> Option<(Self, Until)> {
        let until =
            if name.ends_with(Until::Start.suffix()) { Until::Start } else { Until::Reload };
        let (cookie, index) = name.strip_suffix(until.suffix())?.split_once('-')?;
        let found = Self { netns_cookie: cookie.parse().ok()?, ifindex: index.parse().ok()? };
        // Numbers are read in other forms as well, as with a sign.
        (found.file_name(until) == name).then_some((found, until))
    }
}

/// The marks that the directory has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub marks: HashSet<Mark>,
    /// Those of them that end when the service starts.
    until_start: HashSet<Mark>,
    /// The entry that was ignored, for the log.
    pub complaint: Option<String>,
}

/// The directory of marks.
#[derive(Debug)]
pub struct Marks {
    directory: PathBuf,
}

impl Marks {
    pub fn of_host() -> Self {
        Self { directory: Path::new(lock::DIRECTORY).join(NAME) }
    }

    /// Marks a tap; nothing changes if it is marked so already.
    pub fn add(&self, mark: Mark, until: Until) -> Result<()> {
        self.add_all(&[mark], until)
    }

    /// Marks taps, all that can be, with one look at the marks that are there.
    pub fn add_all(&self, marks: &[Mark], until: Until) -> Result<()> {
        if let Some(parent) = self.directory.parent() {
            fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
        }
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::file("create", &self.directory)(error));
            }
            _ => {}
        }
        self.make_room(marks.len())?;
        all(marks.iter().map(|mark| self.add_file(*mark, until)))
    }

    fn add_file(&self, mark: Mark, until: Until) -> Result<()> {
        let path = self.directory.join(mark.file_name(until));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(Error::file("create", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes all marks of a tap.
    pub fn remove(&self, mark: Mark) -> Result<()> {
        all(Until::ALL.into_iter().map(|until| self.remove_file(mark, until)))
    }

    fn remove_file(&self, mark: Mark, until: Until) -> Result<()> {
        let path = self.directory.join(mark.file_name(until));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::file("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Is this tap marked?
    pub fn has(&self, mark: Mark) -> bool {
        let is_file = |until| {
            let path = self.directory.join(mark.file_name(until));
            fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
        };
        Until::ALL.into_iter().any(is_file)
    }

    /// Removes all marks. Others may be removed though one cannot be.
    pub fn clear(&self) -> Result<()> {
        all(self.find().marks.into_iter().map(|mark| self.remove(mark)))
    }

    /// Removes the marks that end when the service starts.
    pub fn service_starts(&self) -> Result<()> {
        let marks = self.find().until_start.into_iter();
        all(marks.map(|mark| self.remove_file(mark, Until::Start)))
    }

    /// All marks. What is not understood counts as none.
    pub fn find(&self) -> Found {
        let mut found = Found::default();
        let unreadable = |error| Some(format!("read {}: {error}", self.directory.display()));
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return found,
            Err(error) => return Found { complaint: unreadable(error), ..found },
        };
        // Marks that are made side by side may be a few more than MOST.
        for entry in entries.take(2 * MOST) {
            let mark = entry.and_then(|entry| {
                let is_file = entry.file_type()?.is_file();
                let mark = entry.file_name().to_str().and_then(Mark::of_name);
                Ok(mark.filter(|_| is_file).ok_or_else(|| entry.path()))
            });
            match mark {
                Ok(Ok((mark, until))) => {
                    found.marks.insert(mark);
                    if until == Until::Start {
                        found.until_start.insert(mark);
                    }
                }
                Ok(Err(path)) => {
                    let text = format!("{} is no mark of a detached tap", path.display());
                    found.complaint = Some(text);
                }
                Err(error) => found.complaint = unreadable(error),
            }
        }
        found
    }

    /// Removes the oldest marks, so that there are at most [`MOST`] with `more` of them.
    fn make_room(&self, more: usize) -> Result<()> {
        let mut marks: Vec<_> = self.find().marks.into_iter().collect();
        let excess = (marks.len() + more).saturating_sub(MOST).min(marks.len());
        if excess == 0 {
            return Ok(());
        }
        let made = |mark: &Mark| -> Option<SystemTime> {
            let path = |until| self.directory.join(mark.file_name(until));
            let found = |until| fs::symlink_metadata(path(until)).ok()?.modified().ok();
            Until::ALL.into_iter().find_map(found)
        };
        marks.sort_by_cached_key(made);
        all(marks.into_iter().take(excess).map(|mark| self.remove(mark)))
    }
}

/// Does all of it, also after an error; the last error counts.
fn all(results: impl Iterator<Item = Result<()>>) -> Result<()> {
    results.filter(Result::is_err).last().unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Goes with the test.
    struct Scratch(Marks);

    impl Scratch {
        fn new(test: &str) -> Self {
            let name = format!("vsnoop-detached-by-operator-{}-{test}", std::process::id());
            Self(Marks { directory: std::env::temp_dir().join(name).join(NAME) })
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.directory.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.directory.parent().unwrap());
        }
    }

    fn mark(netns_cookie: u64, ifindex: u32) -> Mark {
        Mark { netns_cookie, ifindex }
    }

    #[test]
    fn marks_are_files_of_root_until_they_are_removed() {
        let scratch = Scratch::new("kept");
        let marks = &scratch.0;
        assert_eq!(marks.find(), Found::default(), "there is no directory");
        marks.remove(mark(1, 2)).unwrap();
        marks.clear().unwrap();
        for mark in [mark(1, 2), mark(1, 2), mark(u64::MAX, u32::MAX)] {
            marks.add(mark, Until::Reload).unwrap();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&marks.directory), mode(&scratch.path("1-2"))), (0o700, 0o600));
        let both = HashSet::from([mark(1, 2), mark(u64::MAX, u32::MAX)]);
        assert_eq!(marks.find(), Found { marks: both, ..Found::default() });
        assert!(marks.has(mark(1, 2)) && !marks.has(mark(2, 1)));
        marks.remove(mark(1, 2)).unwrap();
        assert_eq!(marks.find().marks, HashSet::from([mark(u64::MAX, u32::MAX)]));
        marks.clear().unwrap();
        assert_eq!(marks.find(), Found::default());
    }

    #[test]
    fn a_start_of_the_service_ends_the_marks_that_are_meant_for_it() {
        let scratch = Scratch::new("start");
        let marks = &scratch.0;
        marks.add(mark(1, 2), Until::Start).unwrap();
        marks.add(mark(3, 4), Until::Start).unwrap();
        marks.add(mark(3, 4), Until::Reload).unwrap();
        assert_eq!(marks.find().marks, HashSet::from([mark(1, 2), mark(3, 4)]));
        assert!(marks.has(mark(1, 2)));
        marks.service_starts().unwrap();
        assert_eq!(marks.find().marks, HashSet::from([mark(3, 4)]), "the stronger one stays");
        marks.add(mark(3, 4), Until::Start).unwrap();
        marks.remove(mark(3, 4)).unwrap();
        assert_eq!(marks.find(), Found::default());
    }

    #[test]
    fn what_is_no_mark_is_ignored_named_and_kept() {
        let scratch = Scratch::new("foreign");
        let marks = &scratch.0;
        marks.add(mark(3, 4), Until::Reload).unwrap();
        let names = [
            "1",
            "1-",
            "-2",
            "+1-2",
            "01-2",
            "1-2-3",
            "1-2.",
            "1-2.start.start",
            "1-4294967296",
            "web",
            "\u{1f980}",
        ];
        for name in names {
            fs::write(scratch.path(name), "1-2").unwrap();
            let found = marks.find();
            assert_eq!(found.marks, HashSet::from([mark(3, 4)]), "{name}");
            assert!(found.complaint.unwrap().contains(name));
            marks.clear().unwrap();
            fs::remove_file(scratch.path(name)).expect(name);
            marks.add(mark(3, 4), Until::Reload).unwrap();
        }
        // Neither a directory nor a link is a mark.
        fs::create_dir(scratch.path("1-2")).unwrap();
        std::os::unix::fs::symlink("3-4", scratch.path("5-6")).unwrap();
        assert_eq!(marks.find().marks, HashSet::from([mark(3, 4)]));
        // The content of a mark does not count.
        fs::write(scratch.path("3-4"), [0xff; 4096]).unwrap();
        assert_eq!(marks.find().marks, HashSet::from([mark(3, 4)]));
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_an_error_of_add_and_no_mark() {
        let scratch = Scratch::new("file");
        fs::create_dir(scratch.0.directory.parent().unwrap()).unwrap();
        fs::write(&scratch.0.directory, "").unwrap();
        let found = scratch.0.find();
        assert!(found.marks.is_empty() && found.complaint.is_some(), "{found:?}");
        assert!(scratch.0.add(mark(1, 2), Until::Reload).is_err());
        scratch.0.clear().unwrap();
    }

    #[test]
    fn one_mark_too_many_replaces_the_oldest() {
        let scratch = Scratch::new("many");
        let marks = &scratch.0;
        marks.add(mark(7, 0), Until::Reload).unwrap();
        for ifindex in 1..MOST as u32 {
            fs::write(scratch.path(&mark(7, ifindex).file_name(Until::Reload)), "").unwrap();
        }
        let long_ago = SystemTime::UNIX_EPOCH;
        let oldest = fs::File::options().write(true).open(scratch.path("7-99")).unwrap();
        oldest.set_modified(long_ago).unwrap();
        marks.add(mark(8, 1), Until::Reload).unwrap();
        let found = marks.find().marks;
        assert_eq!(found.len(), MOST);
        assert!(found.contains(&mark(8, 1)) && !found.contains(&mark(7, 99)));
    }
}
