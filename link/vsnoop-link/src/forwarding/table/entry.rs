//! An address and its location, as the table knows them.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::forwarding::location::Location;
use crate::forwarding::mac::Mac;
use crate::rate::Rate;

pub(super) const SECOND_NS: u64 = 1_000_000_000;

/// Where an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    At(Location),
    /// Two locations use it; the first had it before.
    Either(Location, Location),
    /// More than two do.
    Anywhere,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct AddressKey {
    pub mac: Mac,
    pub vlan: u16,
}

/// Another location uses the address of an entry, too. Few entries have one.
#[derive(Debug)]
pub(super) struct Contest {
    pub rival: Location,
    /// When the rival used it last.
    pub seen_ns: AtomicU64,
    /// Until when more than two locations use the address.
    pub crowded_until_ns: u64,
    pub copies: Rate,
}

impl Contest {
    pub fn new(rival: Location, now_ns: u64) -> Self {
        let seen_ns = AtomicU64::new(now_ns);
        Self { rival, seen_ns, crowded_until_ns: 0, copies: Rate::default() }
    }
}

/// A full table has a hundred thousand of them.
#[derive(Debug)]
pub(super) struct LearnedEntry {
    pub location: Location,
    /// Index of its key in the location's list.
    pub index: u32,
    pub seen_ns: AtomicU64,
    pub floods: Rate,
    pub assured: Rate,
    pub contest: Option<Box<Contest>>,
    /// When the address was seen at this location first, in seconds.
    since_s: u32,
    /// From when on a frame of it proves it.
    proof_s: u32,
    pub is_proven: bool,
    /// Asked or not, it is not proven before `proof_s`.
    is_refused: bool,
    /// Another location has sent to it: its next frame answers.
    is_asked: AtomicBool,
}

/// An address that sends for this long has proved itself.
const PROOF_S: u32 = 2;
/// When a proof that found no room is tried again.
const AGAIN_S: u32 = 1;

/// Seconds of a link's clock.
fn to_seconds(now_ns: u64) -> u32 {
    u32::try_from(now_ns / SECOND_NS).unwrap_or(u32::MAX)
}

impl LearnedEntry {
    pub fn new(location: Location, index: usize, now_ns: u64) -> Self {
        let since_s = to_seconds(now_ns);
        Self {
            location,
            index: index as u32,
            seen_ns: AtomicU64::new(now_ns),
            floods: Rate::default(),
            assured: Rate::default(),
            contest: None,
            since_s,
            proof_s: since_s.saturating_add(PROOF_S),
            is_proven: false,
            is_refused: false,
            is_asked: AtomicBool::new(false),
        }
    }

    /// When a frame came from the address last, by any location.
    pub fn newest_ns(&self) -> u64 {
        let rival_ns = self.contest.as_ref().map_or(0, |contest| contest.seen_ns.load(Relaxed));
        self.seen_ns.load(Relaxed).max(rival_ns)
    }

    pub fn is_known_for(&self, time_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(u64::from(self.since_s) * SECOND_NS) >= time_ns
    }

    /// Notes a frame to the address.
    pub fn note_question(&self) {
        if !self.is_proven && !self.is_refused && !self.is_asked.load(Relaxed) {
            self.is_asked.store(true, Relaxed);
        }
    }

    /// Whether a frame of it, now, proves it.
    pub fn is_proof_due(&self, now_ns: u64) -> bool {
        !self.is_proven && (self.is_asked.load(Relaxed) || to_seconds(now_ns) >= self.proof_s)
    }

    /// There is no room for another one that has proved itself.
    pub fn refuse_proof(&mut self, now_ns: u64) {
        self.is_refused = true;
        self.is_asked = AtomicBool::new(false);
        self.proof_s = to_seconds(now_ns).saturating_add(AGAIN_S);
    }

    pub fn whereabouts(&self, doubt_ns: u64, now_ns: u64) -> Whereabouts {
        let Some(contest) = &self.contest else { return Whereabouts::At(self.location) };
        if now_ns < contest.crowded_until_ns {
            return Whereabouts::Anywhere;
        }
        let (own_ns, rival_ns) = (self.seen_ns.load(Relaxed), contest.seen_ns.load(Relaxed));
        if own_ns > rival_ns.saturating_add(doubt_ns) {
            Whereabouts::At(self.location)
        } else if rival_ns > own_ns.saturating_add(doubt_ns) {
            Whereabouts::At(contest.rival)
        } else {
            Whereabouts::Either(self.location, contest.rival)
        }
    }
}
