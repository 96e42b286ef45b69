//! Bounds the work of the ingress thread for a peer in a round.
//!
//! Data can decompress to a thousand times their size, so a peer's budget is measured in bytes
//! after decompression, not in reads. A connection whose peer has used up its budget keeps what it
//! has read, and waits for the next round, in order.

use std::collections::VecDeque;

use super::token::IngressToken;
use crate::threads::slots::BySlot;
use vsnoop_link::slots::PeerSlot;

/// A peer's budget of a round, bytes after decompression: what a few reads bring uncompressed.
pub const PEER_BYTES: usize = 4 << 20;
/// Cost of passing on an item, in bytes that could be copied in that time.
const ITEM_BYTES: usize = 256;

/// A peer's budget of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    left_bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left_bytes: PEER_BYTES }
    }
}

impl Budget {
    /// Takes an item of `bytes` from the budget.
    pub fn use_up(&mut self, bytes: usize) {
        self.left_bytes = self.left_bytes.saturating_sub(ITEM_BYTES + bytes);
    }

    pub fn is_used_up(&self) -> bool {
        self.left_bytes == 0
    }
}

/// The budgets of the present round, and the connections that wait for the next.
pub struct Rounds {
    budgets: BySlot<PeerSlot, Budget>,
    /// The budget of the socket for datagrams, which is one for all peers.
    pub datagrams: Budget,
    waiting: VecDeque<IngressToken>,
}

impl Rounds {
    pub fn new(peers: usize) -> Self {
        let budgets = (0..peers).map(|_| Budget::default()).collect();
        Self { budgets, datagrams: Budget::default(), waiting: VecDeque::new() }
    }

    /// A reload has changed the number of peer slots to `peers`.
    pub fn set_peers(&mut self, peers: usize) {
        self.budgets.resize_with(peers, Budget::default);
    }

    /// Begins a round.
    pub fn begin_round(&mut self) {
        self.budgets.values_mut().for_each(|budget| *budget = Budget::default());
        self.datagrams = Budget::default();
    }

    pub fn peer_budget(&mut self, peer: PeerSlot) -> &mut Budget {
        &mut self.budgets[peer]
    }

    /// Puts the token behind those that wait already.
    pub fn wait_for_round(&mut self, token: IngressToken) {
        if !self.waits(token) {
            self.waiting.push_back(token);
        }
    }

    pub fn waits(&self, token: IngressToken) -> bool {
        self.waiting.contains(&token)
    }

    /// The connections that waited for this round, in order.
    pub fn take_waiting(&mut self) -> VecDeque<IngressToken> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::ConnectionNumber;
    use super::*;

    #[test]
    fn a_budget_is_for_one_round_and_one_peer() {
        let mut rounds = Rounds::new(2);
        while !rounds.peer_budget(PeerSlot(0)).is_used_up() {
            rounds.peer_budget(PeerSlot(0)).use_up(65_536);
        }
        assert!(!rounds.peer_budget(PeerSlot(1)).is_used_up());
        rounds.begin_round();
        assert!(!rounds.peer_budget(PeerSlot(0)).is_used_up());
    }

    #[test]
    fn short_items_use_up_a_budget_too() {
        let mut budget = Budget::default();
        let items = (0..).take_while(|_| {
            budget.use_up(1);
            !budget.is_used_up()
        });
        assert!(items.count() < PEER_BYTES / ITEM_BYTES);
    }

    #[test]
    fn each_waits_once_and_in_order() {
        let mut rounds = Rounds::new(0);
        let connection = IngressToken::Connection(ConnectionNumber::default());
        for token in [IngressToken::Datagrams, connection, IngressToken::Datagrams] {
            rounds.wait_for_round(token);
        }
        assert_eq!(rounds.take_waiting(), [IngressToken::Datagrams, connection]);
        assert!(!rounds.waits(connection));
    }
}
