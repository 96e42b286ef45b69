//! The pairs of data threads, and which of them serves a peer.
//!
//! A pair is a thread that carries frames to peers and one that carries them to ports
//! ([`threads`](crate::threads)). All sessions of a peer belong to one pair: it has their keys,
//! counters, replay windows and compression contexts, which no other thread touches. Each pair has
//! a queue of every tap of the link and a socket at its UDP port
//! ([`udp_port`](crate::io::udp_port)).

use vsnoop_link::introduction::{Label, MOST_LABELS};

/// Most pairs of a link.
pub const PAIRS_MAX: usize = 16;
/// Pairs of a link whose configuration does not say how many: no more than these, each for two
/// CPUs.
const UNASKED_MAX: usize = 8;

/// How many pairs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs(usize);

impl Pairs {
    /// At least one.
    pub fn new(count: usize) -> Self {
        Self(count.clamp(1, PAIRS_MAX))
    }

    /// One pair for each two CPUs, at most [`UNASKED_MAX`].
    pub fn of_machine() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new((cpus / 2).min(UNASKED_MAX))
    }

    pub fn count(self) -> usize {
        self.0
    }

    /// Their numbers.
    pub fn all(self) -> std::ops::Range<usize> {
        0..self.0
    }

    /// The pair that serves the peer, or reads the port, in this slot.
    pub fn of(self, slot: usize) -> usize {
        slot % self.0
    }

    /// Peers by the pair that serves them; no pair without any.
    pub fn divide(self, peers: Vec<u16>) -> Vec<(usize, Vec<u16>)> {
        let mut divided: Vec<(usize, Vec<u16>)> = Vec::new();
        for peer in peers {
            let pair = self.of(peer.into());
            match divided.iter_mut().find(|(other, _)| *other == pair) {
                Some((_, peers)) => peers.push(peer),
                None => divided.push((pair, vec![peer])),
            }
        }
        divided
    }

    /// A number for a new session of a peer, by which the kernel gives its records to the pair that
    /// serves the peer. With any label added it is still a number.
    pub fn session_number(self, peer: usize) -> u32 {
        let pairs = self.0 as u32;
        let numbers = (u32::MAX - u32::from(MOST_LABELS)) / pairs;
        fastrand::u32(..numbers) * pairs + self.of(peer) as u32
    }

    /// The label of a peer: a multiple of the number of pairs, which added to a session's number
    /// leaves its pair. `None`: the peer's slot is too high for one.
    pub fn label(self, peer: usize) -> Option<Label> {
        Label::new(u16::try_from((peer + 1) * self.0).ok()?)
    }

    /// The peer that has this label.
    pub fn peer_of_label(self, label: u16) -> Option<usize> {
        let label = usize::from(label);
        if label % self.0 != 0 {
            return None;
        }
        (label / self.0).checked_sub(1)
    }

    /// The pair that gets the records of a session with this number.
    pub fn of_session(self, number: u32) -> usize {
        number as usize % self.0
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_link::introduction::MOST_ASKED;

    use super::*;

    #[test]
    fn a_sessions_records_go_to_the_pair_of_its_peer() {
        for pairs in (1..=PAIRS_MAX).map(Pairs::new) {
            for peer in 0..40 {
                assert_eq!(pairs.of_session(pairs.session_number(peer)), pairs.of(peer));
            }
        }
    }

    #[test]
    fn a_record_with_a_label_goes_to_the_pair_of_its_session() {
        for pairs in (1..=PAIRS_MAX).map(Pairs::new) {
            for hub in 0..40 {
                let session = pairs.session_number(hub);
                for peer in [0, 1, 2, 5, 38, MOST_ASKED - PAIRS_MAX] {
                    let label = pairs.label(peer).unwrap().number();
                    let labelled = session.checked_add(label.into()).unwrap();
                    assert_eq!(pairs.of_session(labelled), pairs.of(hub));
                    assert_eq!(pairs.peer_of_label(label), Some(peer));
                }
            }
            assert_eq!(pairs.peer_of_label(0), None);
        }
        assert_eq!(Pairs::new(2).peer_of_label(3), None);
    }

    #[test]
    fn there_is_always_a_pair() {
        assert_eq!((Pairs::new(0).count(), Pairs::new(99).count()), (1, PAIRS_MAX));
        assert!(Pairs::of_machine().count() >= 1);
    }
}
