//! Orders to the data threads, each to those that it concerns.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::io::wake;
use super::pairs::Pairs;
use super::shared::Shared;
use super::{egress, ingress};

/// Channels to all data threads; clones are the same.
#[derive(Clone)]
pub struct Orders {
    pairs: Pairs,
    /// By pair.
    egress: Vec<wake::Sender<egress::Order>>,
    ingress: Vec<wake::Sender<ingress::Order>>,
}

impl Orders {
    /// A channel to each half of each pair.
    pub fn new(
        egress: Vec<wake::Sender<egress::Order>>,
        ingress: Vec<wake::Sender<ingress::Order>>,
    ) -> Self {
        Self { pairs: Pairs::new(egress.len()), egress, ingress }
    }

    /// To the thread that sends to a peer.
    pub fn egress(&self, peer: usize, order: egress::Order) {
        if let Some(of) = self.egress.get(self.pairs.of(peer)) {
            of.send(order);
        }
    }

    /// To the thread that receives by the data connections of a peer.
    pub fn ingress(&self, peer: usize, order: ingress::Order) {
        if let Some(of) = self.ingress.get(self.pairs.of(peer)) {
            of.send(order);
        }
    }

    /// To the thread that gets the records of the session with this number.
    pub fn ingress_of_session(&self, number: u32, order: ingress::Order) {
        if let Some(of) = self.ingress.get(self.pairs.of_session(number)) {
            of.send(order);
        }
    }

    /// To each thread that sends; `false`: none is there.
    pub fn each_egress(&self, order: impl Fn() -> egress::Order) -> bool {
        self.egress.iter().filter(|of| of.send(order())).count() > 0
    }

    /// To each thread that receives.
    pub fn each_ingress(&self, order: impl Fn() -> ingress::Order) {
        for of in &self.ingress {
            of.send(order());
        }
    }

    /// Gives each thread its view of the new ports and peers. Returns how many threads will say
    /// that they have it.
    pub fn reload(&self, shared: &Shared, done: &SyncSender<()>) -> usize {
        for (pair, (egress, ingress)) in self.egress.iter().zip(&self.ingress).enumerate() {
            let shared = Arc::new(shared.for_pair(pair));
            let (of_ingress, done) = (Arc::clone(&shared), done.clone());
            ingress.send(ingress::Order::Reload { shared: of_ingress, done: done.clone() });
            egress.send(egress::Order::Reload { shared, done });
        }
        self.egress.len() + self.ingress.len()
    }

    /// All threads end.
    pub fn stop(&self) {
        self.each_egress(|| egress::Order::Stop);
        self.each_ingress(|| ingress::Order::Stop);
    }
}
