//! Orders to the data threads, each to those that it concerns.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::io::wake;
use crate::threads::pairs::{PairSlot, Pairs, SessionNumber};
use crate::threads::shared::Shared;
use crate::threads::slots::BySlot;
use crate::{egress, ingress};
use vsnoop_link::slots::PeerSlot;

/// Channels to all data threads; clones are the same.
#[derive(Clone)]
pub struct Orders {
    pairs: Pairs,
    egress: BySlot<PairSlot, wake::Sender<egress::Order>>,
    ingress: BySlot<PairSlot, wake::Sender<ingress::Order>>,
}

impl Orders {
    /// A channel to each half of each pair.
    pub fn new(
        egress: BySlot<PairSlot, wake::Sender<egress::Order>>,
        ingress: BySlot<PairSlot, wake::Sender<ingress::Order>>,
    ) -> Self {
        Self { pairs: Pairs::new(egress.len()), egress, ingress }
    }

    /// To the thread that sends to a peer.
    pub fn order_egress(&self, peer: PeerSlot, order: egress::Order) {
        if let Some(thread) = self.egress.get(self.pairs.pair_of(peer)) {
            thread.send(order);
        }
    }

    /// To the thread that receives by the data connections of a peer.
    pub fn order_ingress(&self, peer: PeerSlot, order: ingress::Order) {
        if let Some(thread) = self.ingress.get(self.pairs.pair_of(peer)) {
            thread.send(order);
        }
    }

    /// To the thread that gets the records of the session with this number.
    pub fn ingress_of_session(&self, number: SessionNumber, order: ingress::Order) {
        if let Some(thread) = self.ingress.get(self.pairs.pair_of_session(number)) {
            thread.send(order);
        }
    }

    /// To each thread that sends; `false`: none is there.
    pub fn each_egress(&self, order: impl Fn() -> egress::Order) -> bool {
        self.egress.values().filter(|thread| thread.send(order())).count() > 0
    }

    /// To each thread that receives.
    pub fn each_ingress(&self, order: impl Fn() -> ingress::Order) {
        for thread in self.ingress.values() {
            thread.send(order());
        }
    }

    /// Gives each thread its view of the new ports and peers. Returns how many threads will say
    /// that they have it.
    pub fn order_reload(&self, shared: &Shared, done: &SyncSender<()>) -> usize {
        for ((pair, egress), ingress) in self.egress.iter().zip(self.ingress.values()) {
            let shared = Arc::new(shared.for_pair(pair));
            let (of_ingress, done) = (Arc::clone(&shared), done.clone());
            ingress.send(ingress::Order::Reload { shared: of_ingress, done: done.clone() });
            egress.send(egress::Order::Reload { shared, done });
        }
        self.egress.len() + self.ingress.len()
    }

    /// All threads end.
    pub fn order_stop(&self) {
        self.each_egress(|| egress::Order::Stop);
        self.each_ingress(|| ingress::Order::Stop);
    }
}
