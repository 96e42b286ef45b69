//! The senders of all peers.
//!
//! A batch of frames is for a few of what may be a thousand peers: only the senders that were used
//! since are looked at after it.

use std::time::Duration;

use super::super::stats::PeerStats;
use super::peer_sender::PeerSender;

#[derive(Default)]
pub struct Senders {
    /// By the peer's slot.
    all: Vec<PeerSender>,
    /// Slots of those that were used, each once.
    used: Vec<usize>,
    is_used: Vec<bool>,
}

impl Senders {
    pub fn new(count: usize) -> Self {
        let mut new = Self::default();
        new.resize(count);
        new
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Changes the number of peers to `count`.
    pub fn resize(&mut self, count: usize) {
        self.all.resize_with(count, PeerSender::default);
        self.is_used.resize(count, false);
        self.used.retain(|peer| *peer < count);
    }

    pub fn get(&self, peer: usize) -> Option<&PeerSender> {
        self.all.get(peer)
    }

    /// The sender of a peer, to be used.
    pub fn get_mut(&mut self, peer: usize) -> Option<&mut PeerSender> {
        let sender = self.all.get_mut(peer)?;
        if !std::mem::replace(&mut self.is_used[peer], true) {
            self.used.push(peer);
        }
        Some(sender)
    }

    /// See [`PeerSender::set_dead_after`].
    pub fn set_dead_after(&self, time: Duration) {
        self.all.iter().for_each(|sender| sender.set_dead_after(time));
    }

    /// Does any peer have its session over an ordered transport?
    pub fn any_ordered(&self) -> bool {
        self.all.iter().any(PeerSender::is_ordered)
    }

    /// Each that was used, with its number and its counters.
    pub fn for_each_used(
        &mut self,
        stats: &[std::sync::Arc<PeerStats>],
        mut each: impl FnMut(usize, &mut PeerSender, &PeerStats),
    ) {
        for peer in &self.used {
            if let (Some(sender), Some(stats)) = (self.all.get_mut(*peer), stats.get(*peer)) {
                each(*peer, sender, stats);
            }
        }
    }

    /// There is nothing left to do for those that were used.
    pub fn settle(&mut self) {
        for peer in self.used.drain(..) {
            self.is_used[peer] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_that_was_used_is_looked_at_once() {
        let stats: Vec<_> = (0..5).map(|_| Default::default()).collect();
        let mut senders = Senders::new(5);
        let used = |senders: &mut Senders| {
            let mut found = Vec::new();
            senders.for_each_used(&stats, |peer, _, _| found.push(peer));
            found
        };
        for peer in [3, 1, 3, 9] {
            assert_eq!(senders.get_mut(peer).is_some(), peer < 5);
        }
        assert_eq!(used(&mut senders), [3, 1]);
        assert_eq!(used(&mut senders), [3, 1], "until all is settled");
        senders.settle();
        assert!(used(&mut senders).is_empty());
        senders.get_mut(1);
        senders.get_mut(4);
        senders.resize(2);
        assert_eq!(used(&mut senders), [1]);
        senders.resize(5);
        senders.get_mut(4);
        senders.settle();
        assert_eq!((senders.len(), senders.any_ordered()), (5, false));
    }
}
