//! The time at which each peer is due: a link with a thousand peers serves only those that are
//! due, and not at all of them for each.

use std::collections::BTreeSet;

use crate::threads::slots::BySlot;
use vsnoop_link::slots::PeerSlot;

/// Longest interval between two visits, even if the state machine waits for nothing: counters of
/// the data threads and the ends of certificates are polled.
const AT_LEAST_NS: u64 = 1_000_000_000;

/// The deadlines of one peer.
#[derive(Clone, Copy, Default)]
struct PeerDeadline {
    /// In the queue.
    queued_ns: u64,
    /// The peer is visited by then in any case.
    latest_ns: u64,
}

#[derive(Default)]
pub struct Deadlines {
    queue: BTreeSet<(u64, PeerSlot)>,
    by_peer: BySlot<PeerSlot, PeerDeadline>,
}

impl Deadlines {
    /// The next time that any peer is due; `u64::MAX` without peers.
    pub fn next_ns(&self) -> u64 {
        self.queue.first().map_or(u64::MAX, |(at_ns, _)| *at_ns)
    }

    /// The machine of a peer waits until `at_ns`. A peer that is new is due at once.
    pub fn set(&mut self, peer: PeerSlot, at_ns: u64) {
        let first = self.by_peer.len();
        self.by_peer.make_room(peer, PeerDeadline::default);
        self.queue.extend(self.by_peer.slots().skip(first).map(|new| (0, new)));
        let PeerDeadline { queued_ns, latest_ns } = &mut self.by_peer[peer];
        self.queue.remove(&(*queued_ns, peer));
        *queued_ns = at_ns.min(*latest_ns);
        self.queue.insert((*queued_ns, peer));
    }

    /// The peers that are due; they are looked at now.
    pub fn take_due(&mut self, now_ns: u64) -> Vec<PeerSlot> {
        let due: Vec<_> =
            self.queue.range(..=(now_ns, PeerSlot(u16::MAX))).map(|(_, peer)| *peer).collect();
        for &peer in &due {
            self.by_peer[peer].latest_ns = now_ns + AT_LEAST_NS;
            self.set(peer, u64::MAX);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn peers_are_due_at_their_times_and_every_second() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.next_ns(), u64::MAX);
        deadlines.set(PeerSlot(2), u64::MAX);
        assert_eq!(deadlines.next_ns(), 0, "they are new");
        assert_eq!(deadlines.take_due(5), [0, 1, 2].map(PeerSlot));
        assert!(deadlines.take_due(5).is_empty());
        assert_eq!(deadlines.next_ns(), 5 + SECOND_NS);
        deadlines.set(PeerSlot(1), 70);
        deadlines.set(PeerSlot(2), 60);
        deadlines.set(PeerSlot(2), 80);
        assert_eq!((deadlines.next_ns(), deadlines.take_due(70)), (70, vec![PeerSlot(1)]));
        assert_eq!(deadlines.take_due(80), [PeerSlot(2)]);
        deadlines.set(PeerSlot(1), u64::MAX);
        assert_eq!(deadlines.take_due(5 + SECOND_NS), [PeerSlot(0)]);
        assert_eq!(deadlines.take_due(80 + SECOND_NS), [1, 2].map(PeerSlot));
    }
}
