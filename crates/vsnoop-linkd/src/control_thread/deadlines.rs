//! The time at which each peer is due: a link with a thousand peers serves only those that are
//! due, and not at all of them for each.

use std::collections::BTreeSet;

/// Longest interval between two visits, even if the state machine waits for nothing: counters of
/// the data threads and the ends of certificates are polled.
const AT_LEAST_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub struct Deadlines {
    queue: BTreeSet<(u64, usize)>,
    /// By slot: the time in `queue`, and the one by which the peer is looked at in any case.
    by_peer: Vec<(u64, u64)>,
}

impl Deadlines {
    /// The next time that any peer is due; `u64::MAX` without peers.
    pub fn next_ns(&self) -> u64 {
        self.queue.first().map_or(u64::MAX, |(at_ns, _)| *at_ns)
    }

    /// The machine of a peer waits until `at_ns`. A peer that is new is due at once.
    pub fn set(&mut self, peer: usize, at_ns: u64) {
        if peer >= self.by_peer.len() {
            let first = self.by_peer.len();
            self.by_peer.resize(peer + 1, (0, 0));
            self.queue.extend((first..=peer).map(|peer| (0, peer)));
        }
        let (queued_ns, latest_ns) = &mut self.by_peer[peer];
        self.queue.remove(&(*queued_ns, peer));
        *queued_ns = at_ns.min(*latest_ns);
        self.queue.insert((*queued_ns, peer));
    }

    /// The peers that are due; they are looked at now.
    pub fn take_due(&mut self, now_ns: u64) -> Vec<usize> {
        let due: Vec<_> =
            self.queue.range(..=(now_ns, usize::MAX)).map(|(_, peer)| *peer).collect();
        for &peer in &due {
            self.by_peer[peer].1 = now_ns + AT_LEAST_NS;
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
        deadlines.set(2, u64::MAX);
        assert_eq!(deadlines.next_ns(), 0, "they are new");
        assert_eq!(deadlines.take_due(5), [0, 1, 2]);
        assert!(deadlines.take_due(5).is_empty());
        assert_eq!(deadlines.next_ns(), 5 + SECOND_NS);
        deadlines.set(1, 70);
        deadlines.set(2, 60);
        deadlines.set(2, 80);
        assert_eq!((deadlines.next_ns(), deadlines.take_due(70)), (70, vec![1]));
        assert_eq!(deadlines.take_due(80), [2]);
        deadlines.set(1, u64::MAX);
        assert_eq!(deadlines.take_due(5 + SECOND_NS), [0]);
        assert_eq!(deadlines.take_due(80 + SECOND_NS), [1, 2]);
    }
}
