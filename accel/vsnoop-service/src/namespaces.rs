//! The network namespaces whose taps the service looks after, and when their devices change: its
//! own, and those of `ip netns` and of pods whose names the configuration matches.
//!
//! An open namespace lives on without a name and without a process; so one is closed as soon as its
//! name is gone.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use vsnoop_host::config::port::PortPattern;
use vsnoop_host::detached_by_operator::Mark;
use vsnoop_host::system::netns::{NAMED, Netns, inode_of};
use vsnoop_netdev::events::LinkEvents;

use crate::error::{Error, Result};

/// `ip netns add` makes the file first, and the namespace a moment later.
const ARRIVING: Duration = Duration::from_secs(5);
/// Between looks for the directory of names.
const NAMELESS: Duration = Duration::from_secs(1);

pub struct Namespaces {
    own: Watched,
    /// By name.
    named: HashMap<String, Watched>,
    /// Inodes of those that were looked after, and that no pattern names any more.
    unnamed: HashSet<u64>,
    /// Says when names come and go.
    names: Option<OwnedFd>,
}

pub struct Watched {
    pub netns: Netns,
    pub cookie: u64,
    events: LinkEvents,
}

impl Watched {
    fn new(netns: Netns) -> Result<Self> {
        let listen = || Ok::<_, vsnoop_host::error::Error>(LinkEvents::listen());
        let events = netns.run(listen)?.map_err(Error::Events)?;
        let cookie = netns.cookie()?;
        Ok(Self { netns, cookie, events })
    }

    /// The mark of a tap of this namespace that was detached.
    pub fn mark(&self, ifindex: u32) -> Mark {
        Mark { netns_cookie: self.cookie, ifindex }
    }
}

impl Namespaces {
    pub fn open() -> Result<Self> {
        let own = Watched::new(Netns::current()?)?;
        Ok(Self { own, named: HashMap::new(), unnamed: HashSet::new(), names: None })
    }

    pub fn all(&self) -> impl Iterator<Item = &Watched> {
        std::iter::once(&self.own).chain(self.named.values())
    }

    pub fn find(&self, inode: u64) -> Option<&Watched> {
        self.all().find(|watched| watched.netns.inode == inode)
    }

    /// Did an earlier configuration name this one, and does the present one not?
    pub fn is_unnamed(&self, inode: u64) -> bool {
        self.unnamed.contains(&inode)
    }

    /// To be polled for input.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let events = self.all().map(|watched| watched.events.as_fd());
        events.chain(self.names.as_ref().map(AsFd::as_fd)).collect()
    }

    /// Reads and drops all pending notifications: the descriptors are not readable any more.
    pub fn take(&self) -> Result<()> {
        for watched in self.all() {
            watched.events.take().map_err(Error::Events)?;
        }
        let Some(names) = &self.names else { return Ok(()) };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(names, &mut buffer);
        loop {
            match reader.next() {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(cannot_watch(errno)),
            }
        }
    }

    /// Opens the namespaces whose names these patterns match, and closes the others. Returns
    /// whether one is only about to come.
    pub fn follow(&mut self, patterns: &[PortPattern]) -> Result<bool> {
        let is_named = |name: &str| {
            patterns.iter().any(|pattern| pattern.netns().iter().any(|glob| glob.matches(name)))
        };
        let left = self.named.iter().filter(|(name, _)| !is_named(name));
        self.unnamed.extend(left.map(|(_, watched)| watched.netns.inode));
        if !are_named(patterns) {
            (self.named, self.names) = (HashMap::new(), None);
            return Ok(false);
        }
        self.watch_names()?;
        let mut found = HashMap::new();
        for entry in fs::read_dir(NAMED).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // The service's own is looked after already, and tables without a name mean it.
            if inode_of(&entry.path()) == Some(self.own.netns.inode) {
                continue;
            }
            if is_named(&name) {
                found.insert(name, entry);
            }
        }
        let mut is_one_arriving = false;
        let known = std::mem::take(&mut self.named);
        for (name, watched) in known {
            // The name may stand for another namespace by now.
            let inode = inode_of(&watched.netns.path);
            if found.contains_key(&name) && inode == Some(watched.netns.inode) {
                self.named.insert(name, watched);
            }
        }
        for (name, entry) in found {
            if self.named.contains_key(&name) {
                continue;
            }
            match Netns::open(&name).map_err(Error::from).and_then(Watched::new) {
                Ok(watched) => drop(self.named.insert(name, watched)),
                Err(error) => {
                    let made = entry.metadata().and_then(|found| found.modified()).ok();
                    let age = made.and_then(|made| SystemTime::now().duration_since(made).ok());
                    match age.is_some_and(|age| age < ARRIVING) {
                        true => is_one_arriving = true,
                        false => tracing::debug!("network namespace {name}: {error}"),
                    }
                }
            }
        }
        let followed: HashSet<_> = self.all().map(|watched| watched.netns.inode).collect();
        self.unnamed.retain(|inode| !followed.contains(inode));
        Ok(is_one_arriving)
    }

    /// When to follow again, though no event says it: there is no directory of names yet.
    pub fn pause(&self, patterns: &[PortPattern]) -> Option<Duration> {
        (self.names.is_none() && are_named(patterns)).then_some(NAMELESS)
    }

    fn watch_names(&mut self) -> Result<()> {
        if self.names.is_some() {
            return Ok(());
        }
        // Under a unit for which /run is read-only the first `ip netns add` makes it.
        if let Err(error) = fs::create_dir_all(NAMED) {
            tracing::debug!("make {NAMED}: {error}");
            return Ok(());
        }
        let names = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(cannot_watch)?;
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        add_watch(&names, NAMED, flags).map_err(cannot_watch)?;
        self.names = Some(names);
        Ok(())
    }
}

/// Do any of them mean namespaces by name?
fn are_named(patterns: &[PortPattern]) -> bool {
    patterns.iter().any(|pattern| !pattern.netns().is_empty())
}

fn cannot_watch(errno: Errno) -> Error {
    Error::Namespaces { directory: NAMED, source: errno.into() }
}
