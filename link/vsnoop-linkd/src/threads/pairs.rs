//! The pairs of data threads, and which of them serves a peer.
//!
//! A pair is a thread that carries frames to peers and one that carries them to ports
//! ([`crew`](crate::threads::crew)). All sessions of a peer belong to one pair: it has their keys,
//! counters, replay windows and compression contexts, which no other thread touches. Each pair has
//! a queue of every tap of the link and a socket at its UDP port
//! ([`udp_port`](crate::io::udp_port)).

use vsnoop_link::introduction::{Label, MOST_LABELS};
use vsnoop_link::slots::{PeerSlot, Slot};

/// Most pairs of a link.
pub const PAIRS_MAX: usize = 16;
/// Pairs of a link whose configuration does not say how many: no more than these, each for two
/// CPUs.
const UNASKED_MAX: usize = 8;

/// The number that a session has in its records. This host chooses it, and a hub adds labels to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionNumber(pub u32);

vsnoop_link::slot! {
    /// The number of a pair, from 0 on.
    PairSlot
}

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
    pub fn all(self) -> impl Iterator<Item = PairSlot> {
        (0..self.0).filter_map(PairSlot::at)
    }

    /// The pair that a number leaves as its rest.
    fn pair_of_rest(self, number: usize) -> PairSlot {
        PairSlot((number % self.0) as u16)
    }

    /// The pair that serves the peer, or reads the port or divert tap, in this slot.
    pub fn pair_of(self, slot: impl Slot) -> PairSlot {
        self.pair_of_rest(slot.index())
    }

    /// Peers by the pair that serves them; no pair without any.
    pub fn divide_peers(self, peers: Vec<PeerSlot>) -> Vec<(PairSlot, Vec<PeerSlot>)> {
        let mut divided: Vec<(PairSlot, Vec<PeerSlot>)> = Vec::new();
        for peer in peers {
            let pair = self.pair_of(peer);
            match divided.iter_mut().find(|(other, _)| *other == pair) {
                Some((_, peers)) => peers.push(peer),
                None => divided.push((pair, vec![peer])),
            }
        }
        divided
    }

    /// A number for a new session of a peer, by which the kernel gives its records to the pair that
    /// serves the peer. With any label added it is still a number.
    pub fn session_number(self, peer: PeerSlot) -> SessionNumber {
        let pairs = self.0 as u32;
        let numbers = (u32::MAX - u32::from(MOST_LABELS)) / pairs;
        SessionNumber(fastrand::u32(..numbers) * pairs + u32::from(self.pair_of(peer).0))
    }

    /// The label of a peer: a multiple of the number of pairs, which added to a session's number
    /// leaves its pair. `None`: the peer's slot is too high for one.
    pub fn peer_label(self, peer: PeerSlot) -> Option<Label> {
        Label::new(u16::try_from((peer.index() + 1) * self.0).ok()?)
    }

    /// The peer that has this label.
    pub fn peer_of_label(self, label: Label) -> Option<PeerSlot> {
        let label = usize::from(label.number());
        if label % self.0 != 0 {
            return None;
        }
        PeerSlot::at((label / self.0).checked_sub(1)?)
    }

    /// The pair that gets the records of a session with this number.
    pub fn pair_of_session(self, number: SessionNumber) -> PairSlot {
        self.pair_of_rest(number.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_link::introduction::MOST_ASKED;

    use super::*;

    #[test]
    fn a_sessions_records_go_to_the_pair_of_its_peer() {
        for pairs in (1..=PAIRS_MAX).map(Pairs::new) {
            for peer in (0..40).map(PeerSlot) {
                let number = pairs.session_number(peer);
                assert_eq!(pairs.pair_of_session(number), pairs.pair_of(peer));
            }
        }
    }

    #[test]
    fn a_record_with_a_label_goes_to_the_pair_of_its_session() {
        for pairs in (1..=PAIRS_MAX).map(Pairs::new) {
            for hub in (0..40).map(PeerSlot) {
                let session = pairs.session_number(hub);
                for peer in [0, 1, 2, 5, 38, (MOST_ASKED - PAIRS_MAX) as u16].map(PeerSlot) {
                    let label = pairs.peer_label(peer).unwrap();
                    let labelled = session.0.checked_add(label.number().into()).unwrap();
                    let pair = pairs.pair_of_session(SessionNumber(labelled));
                    assert_eq!(pair, pairs.pair_of(hub));
                    assert_eq!(pairs.peer_of_label(label), Some(peer));
                }
            }
        }
        assert_eq!(Label::new(3).and_then(|label| Pairs::new(2).peer_of_label(label)), None);
    }

    #[test]
    fn there_is_always_a_pair() {
        assert_eq!((Pairs::new(0).count(), Pairs::new(99).count()), (1, PAIRS_MAX));
        assert!(Pairs::of_machine().count() >= 1);
    }
}
