//! VMs that leave this host before they have all bytes that were acknowledged for them. The service
//! says how many bytes are undelivered, once for each, and counts them once the port has gone,
//! since after a snapshot the VM runs on.
//!
//! | what the service sees | when it says it | by |
//! |---|---|---|
//! | the VM has left, by its monitor | at once | the port |
//! | no process holds the tap of a port that is paused for a migration | at once | the port |
//! | neither, but that the tap was deleted | if the VM's migration had begun | the note |
//!
//! The note is of the process that took the port off (`vsnoop_host::undelivered`). A QEMU that ends
//! in mid-migration counts as one whose VM has left: its bytes are lost as well.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use vsnoop_host::error::with_causes;
use vsnoop_host::holds::amount;
use vsnoop_host::system::netns;
use vsnoop_host::undelivered::{Notes, Undelivered};

use crate::act;
use crate::error::{Error, Result};
use crate::qmp::{Monitors, Phase};
use crate::reconcile::{Attachment, PortKey, VmPlace};
use crate::survey::{Seen, Survey};

/// For this long after a note was read another one of the same attachment is not counted.
const KNOWN: Duration = Duration::from_secs(60);
/// A monitor that says nothing of its VM for this long after the tap was deleted says no more.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Departures {
    notes: Notes,
    /// Says when there is a note.
    events: OwnedFd,
    /// Ports whose VM has left, which was said, with their undelivered bytes.
    left: HashMap<PortKey, u64>,
    /// Attachments of notes of which it is not known yet whether the VM has left, since when.
    undecided: HashMap<u64, Instant>,
    /// Attachments whose notes were read, and when: a process may be killed, or fail, between its
    /// note and the end of the pins, and another one then makes the note again.
    known: HashMap<u64, Instant>,
}

/// The result of a look.
#[derive(Default)]
pub struct Departed {
    /// Undelivered bytes of VMs that have left.
    pub bytes: u64,
    /// There is something to be decided soon.
    pub is_hurried: bool,
}

impl Departures {
    pub fn open() -> Result<Self> {
        let notes = Notes::of_host();
        let directory = notes.create()?;
        let watch = || {
            let events = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            add_watch(&events, directory, WatchFlags::CREATE)?;
            Ok(events)
        };
        let failed =
            |errno: Errno| Error::Notes { directory: directory.to_owned(), source: errno.into() };
        let events = watch().map_err(failed)?;
        let (left, undecided, known) = Default::default();
        Ok(Self { notes, events, left, undecided, known })
    }

    /// To be polled for input.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Reads and drops what the descriptor has.
    pub fn take(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.events, &mut buffer);
        while matches!(reader.next(), Ok(_) | Err(Errno::INTR)) {}
    }

    pub fn find_departed(&mut self, seen: &Seen, survey: &Survey, monitors: &Monitors) -> Departed {
        let mut departed = Departed::default();
        let told = self.read_notes(survey, monitors, &mut departed);
        let mut before = std::mem::take(&mut self.left);
        for port in seen.present.iter().filter(|port| !told.contains(&port.key)) {
            let Some(Attachment::ByService { is_migrating, .. }) = port.attachment else {
                continue;
            };
            let is_unseen = is_migrating && !port.is_held;
            let bytes = match (port.vm, before.remove(&port.key)) {
                (VmPlace::Unknown | VmPlace::Gone { .. }, Some(said)) => Some(said),
                (VmPlace::Gone { .. }, None) => Some(said_of(port.key)),
                (VmPlace::Unknown, None) if is_unseen => Some(said_of(port.key)),
                _ => None,
            };
            self.left.extend(bytes.map(|bytes| (port.key, bytes)));
        }
        // A note of these may come before their pins are gone.
        for key in seen.pinned.keys() {
            self.left.extend(before.remove_entry(key));
        }
        departed.bytes += before.values().sum::<u64>();
        departed
    }

    /// Returns the ports whose notes were read.
    fn read_notes(
        &mut self,
        survey: &Survey,
        monitors: &Monitors,
        departed: &mut Departed,
    ) -> HashSet<PortKey> {
        let now = Instant::now();
        let mut told = HashSet::new();
        self.known.retain(|_, since| now - *since < KNOWN);
        let notes = self.notes.find();
        let ids: HashSet<u64> = notes.iter().map(|note| note.id).collect();
        self.undecided.retain(|id, _| ids.contains(id));
        for note in notes {
            let key = PortKey { netns: note.netns, ifindex: note.ifindex };
            let is_said = self.left.contains_key(&key);
            let phases = survey.pid(key).map(|pid| (monitors.phase(pid), monitors.last_phase(pid)));
            let has_left = |phase| matches!(phase, Phase::Leaving | Phase::Gone { .. });
            let has_left = match phases {
                _ if is_said => true,
                Some((Some(Phase::Here), _)) => {
                    // Its last words may not be read yet.
                    let since = *self.undecided.entry(note.id).or_insert(now);
                    if now - since < PATIENCE {
                        departed.is_hurried = true;
                        continue;
                    }
                    false
                }
                Some((Some(phase), _) | (None, Some(phase))) => has_left(phase),
                Some((None, None)) | None => note.is_migrating,
            };
            self.left.remove(&key);
            told.insert(key);
            let is_new = self.known.insert(note.id, now).is_none();
            if has_left && is_new {
                departed.bytes += note.bytes;
            }
            if has_left && is_new && !is_said {
                say(&note);
            }
            if let Err(error) = self.notes.remove(&note)
                && is_new
            {
                tracing::warn!("{}", with_causes(&error));
            }
        }
        told
    }
}

/// Says what a VM that has left has not acknowledged. Returns the bytes.
fn said_of(key: PortKey) -> u64 {
    act::report_undelivered(key).unwrap_or_else(|error| {
        tracing::warn!("{}", with_causes(&error));
        0
    })
}

fn say(note: &Undelivered) {
    let left = amount(note.bytes, note.flows);
    let port = netns::label_of_port(note.netns, &note.name);
    tracing::warn!("port {port}: its VM has left without {left}: these connections are reset");
}
