//! Loops at layer 2: frames that come back.
//!
//! A frame to a group or to all comes from one location. Where the same frame comes from another
//! one a moment later, it went round: by a second link, a cable or a bridge between two sites. One
//! such frame proves nothing (a VM that moves repeats its announcement), many over some seconds do,
//! or are meant to: a VM that has seen a frame can repeat it at another location. So a loop is
//! told, and whether a port is stopped for it is up to the operator.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use super::location::Location;
use crate::slots::{PeerSlot, PortSlot};

const SECOND_NS: u64 = 1_000_000_000;
/// Frames that are remembered.
const FRAMES: usize = 1024;
/// Hashes the beginning of a frame.
const HASHED_BYTES: usize = 128;
/// A frame that comes back later is another one.
const ROUND_NS: u64 = SECOND_NS;
/// Pairs of locations that are watched at a time.
const PAIRS: usize = 64;
/// Frames must come back for this time,
const PROOF_NS: u64 = 5 * SECOND_NS;
/// at least this number of them,
const PROOF_FRAMES: u64 = 10;
/// and the last one within this time: the bound on copies ends each frame's way round soon, and
/// the next one that shows the loop may be an ARP request.
const SILENT_NS: u64 = 30 * SECOND_NS;

/// Frames come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Where they came from first.
    pub first: Location,
    /// Where they come back.
    pub back: Location,
    pub since_ns: u64,
    pub last_ns: u64,
    pub frames: u64,
}

/// A frame that was seen; zeros before the first.
#[derive(Debug, Default)]
struct Seen {
    hash: AtomicU64,
    at_ns: AtomicU64,
    from: AtomicU64,
}

#[derive(Debug)]
pub(super) struct LoopWatch {
    seen: Box<[Seen]>,
    returns: Mutex<HashMap<(Location, Location), Loop>>,
}

impl Default for LoopWatch {
    fn default() -> Self {
        let seen = (0..FRAMES).map(|_| Seen::default()).collect();
        Self { seen, returns: Mutex::default() }
    }
}

impl LoopWatch {
    /// Notes a frame to a group. Threads may do so at the same time: what they overwrite of each
    /// other is one frame that is not recognised.
    pub fn note_frame(&self, frame: &[u8], from: Location, now_ns: u64) {
        let mut hasher = DefaultHasher::new();
        // Headers, and what tells one datagram of a stream from the next.
        (frame.len(), &frame[..frame.len().min(HASHED_BYTES)]).hash(&mut hasher);
        let hash = hasher.finish();
        let seen = &self.seen[hash as usize % FRAMES];
        let is_same = seen.hash.swap(hash, Relaxed) == hash;
        let first = decode_location(seen.from.load(Relaxed));
        let age_ns = now_ns.saturating_sub(seen.at_ns.load(Relaxed));
        if is_same && age_ns <= ROUND_NS && first != from {
            self.came_back(first, from, now_ns);
        } else {
            seen.from.store(encode_location(from), Relaxed);
            seen.at_ns.store(now_ns, Relaxed);
        }
    }

    fn came_back(&self, first: Location, back: Location, now_ns: u64) {
        let mut returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        returns.retain(|_, found| now_ns.saturating_sub(found.last_ns) <= SILENT_NS);
        if returns.len() >= PAIRS {
            return;
        }
        let begun = Loop { first, back, since_ns: now_ns, last_ns: now_ns, frames: 0 };
        let found = returns.entry((first, back)).or_insert(begun);
        found.last_ns = now_ns;
        found.frames += 1;
    }

    /// Loops that are there now.
    pub fn find_loops(&self, now_ns: u64) -> Vec<Loop> {
        let returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = |found: &&Loop| {
            found.frames >= PROOF_FRAMES
                && found.last_ns.saturating_sub(found.since_ns) >= PROOF_NS
                && now_ns.saturating_sub(found.last_ns) <= SILENT_NS
        };
        let mut loops: Vec<_> = returns.values().filter(is_there).copied().collect();
        loops.sort_by_key(|found| (found.first, found.back));
        loops
    }
}

/// Peers are odd.
fn encode_location(location: Location) -> u64 {
    match location {
        Location::Port(PortSlot(slot)) => u64::from(slot) << 1,
        Location::Peer(PeerSlot(slot)) => u64::from(slot) << 1 | 1,
    }
}

fn decode_location(number: u64) -> Location {
    let slot = (number >> 1) as u16;
    if number & 1 == 0 { Location::Port(PortSlot(slot)) } else { Location::Peer(PeerSlot(slot)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Location = Location::Port(PortSlot(3));
    const PEER: Location = Location::Peer(PeerSlot(3));
    const MS: u64 = 1_000_000;

    #[test]
    fn frames_that_come_back_for_seconds_are_a_loop_and_are_forgotten_when_they_do_not() {
        let watch = LoopWatch::default();
        let mut now = SECOND_NS;
        for number in 0..60_u8 {
            assert!(watch.find_loops(now).is_empty() || number > 50, "after {number} frames");
            watch.note_frame(&[number; 60], PORT, now);
            watch.note_frame(&[number; 60], PEER, now + MS);
            now += 100 * MS;
        }
        let loops = watch.find_loops(now);
        assert_eq!(loops.len(), 1);
        assert_eq!((loops[0].first, loops[0].back, loops[0].frames), (PORT, PEER, 60));
        assert!(watch.find_loops(now + SILENT_NS).is_empty());
    }

    #[test]
    fn what_a_vm_repeats_is_no_loop_nor_is_a_move() {
        let watch = LoopWatch::default();
        let mut now = SECOND_NS;
        for _ in 0..100 {
            watch.note_frame(&[1; 60], PORT, now);
            now += 100 * MS;
        }
        // It has moved, and sends the same.
        for _ in 0..100 {
            watch.note_frame(&[1; 60], PEER, now);
            now += 100 * MS;
        }
        assert!(watch.find_loops(now).is_empty());
        let returns = watch.returns.lock().expect("no thread has panicked");
        assert!(returns.values().map(|found| found.frames).sum::<u64>() <= 10);
    }

    #[test]
    fn what_is_watched_is_bounded() {
        let watch = LoopWatch::default();
        for port in 0..1000 {
            watch.note_frame(&[7; 60], Location::Port(PortSlot(0)), SECOND_NS);
            watch.note_frame(&[7; 60], Location::Port(PortSlot(port)), SECOND_NS);
        }
        assert!(watch.returns.lock().expect("no thread has panicked").len() <= PAIRS);
        for slot in [0, 1, u16::MAX] {
            for at in [Location::Port(PortSlot(slot)), Location::Peer(PeerSlot(slot))] {
                assert_eq!(decode_location(encode_location(at)), at);
            }
        }
    }
}
