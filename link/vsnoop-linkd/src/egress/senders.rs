//! The senders of all peers.
//!
//! A batch of frames is for a few of what may be a thousand peers: only the senders that were used
//! since are looked at after it.

use std::sync::Arc;
use std::time::Duration;

use super::peer_sender::PeerSender;
use crate::counters::stats::PeerStats;
use crate::threads::slots::BySlot;
use vsnoop_link::slots::{PeerSlot, Slot};

#[derive(Default)]
pub struct Senders {
    all: BySlot<PeerSlot, PeerSender>,
    /// Peers whose senders were used, each once.
    used: Vec<PeerSlot>,
    is_used: BySlot<PeerSlot, bool>,
}

impl Senders {
    pub fn new(count: usize) -> Self {
        let mut new = Self::default();
        new.resize(count);
        new
    }

    /// The slots of all peers.
    pub fn slots(&self) -> impl Iterator<Item = PeerSlot> + use<> {
        self.all.slots()
    }

    /// Changes the number of peers to `count`.
    pub fn resize(&mut self, count: usize) {
        self.all.resize_with(count, PeerSender::default);
        self.is_used.resize_with(count, || false);
        self.used.retain(|peer| peer.index() < count);
    }

    pub fn get(&self, peer: PeerSlot) -> Option<&PeerSender> {
        self.all.get(peer)
    }

    /// The sender of a peer, to be used.
    pub fn get_mut(&mut self, peer: PeerSlot) -> Option<&mut PeerSender> {
        let sender = self.all.get_mut(peer)?;
        if !std::mem::replace(&mut self.is_used[peer], true) {
            self.used.push(peer);
        }
        Some(sender)
    }

    /// See [`PeerSender::set_dead_after`].
    pub fn set_dead_after(&self, time: Duration) {
        self.all.values().for_each(|sender| sender.set_dead_after(time));
    }

    /// Does any peer have its session over an ordered transport?
    pub fn any_ordered(&self) -> bool {
        self.all.values().any(PeerSender::is_ordered)
    }

    /// Each that was used, with its slot and its counters.
    pub fn for_each_used(
        &mut self,
        stats: &BySlot<PeerSlot, Arc<PeerStats>>,
        mut each: impl FnMut(PeerSlot, &mut PeerSender, &PeerStats),
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
        let stats: BySlot<_, _> = (0..5).map(|_| Default::default()).collect();
        let mut senders = Senders::new(5);
        let used = |senders: &mut Senders| {
            let mut found = Vec::new();
            senders.for_each_used(&stats, |peer, _, _| found.push(peer.0));
            found
        };
        for peer in [3, 1, 3, 9] {
            assert_eq!(senders.get_mut(PeerSlot(peer)).is_some(), peer < 5);
        }
        assert_eq!(used(&mut senders), [3, 1]);
        assert_eq!(used(&mut senders), [3, 1], "until all is settled");
        senders.settle();
        assert!(used(&mut senders).is_empty());
        senders.get_mut(PeerSlot(1));
        senders.get_mut(PeerSlot(4));
        senders.resize(2);
        assert_eq!(used(&mut senders), [1]);
        senders.resize(5);
        senders.get_mut(PeerSlot(4));
        senders.settle();
        assert_eq!((senders.slots().count(), senders.any_ordered()), (5, false));
    }
}
