//! Bounds the work of the ingress thread for a peer in a turn.
//!
//! Data can decompress to a thousand times their size, so a peer's share is measured in bytes after
//! decompression, not in reads. A connection whose peer has used up its share keeps what it has
//! read, and waits for the next turn, in order.

use std::collections::VecDeque;

/// A peer's share of a turn, bytes after decompression: what a few reads bring uncompressed.
pub const PEER_BYTES: usize = 4 << 20;
/// Cost of passing on an item, in bytes that could be copied in that time.
const ITEM_BYTES: usize = 256;

/// A peer's share of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    left_bytes: usize,
}

impl Default for Share {
    fn default() -> Self {
        Self { left_bytes: PEER_BYTES }
    }
}

impl Share {
    /// Counts an item of so many bytes.
    pub fn use_up(&mut self, bytes: usize) {
        self.left_bytes = self.left_bytes.saturating_sub(ITEM_BYTES + bytes);
    }

    pub fn is_used_up(&self) -> bool {
        self.left_bytes == 0
    }
}

/// The shares of the present turn, and the connections that wait for the next.
pub struct Turns {
    shares: Vec<Share>,
    /// The share of the socket for datagrams, which is one for all peers.
    pub datagrams: Share,
    waiting: VecDeque<u64>,
}

impl Turns {
    pub fn new(peers: usize) -> Self {
        let shares = vec![Share::default(); peers];
        Self { shares, datagrams: Share::default(), waiting: VecDeque::new() }
    }

    /// A reload has changed the number of peer slots to `peers`.
    pub fn set_peers(&mut self, peers: usize) {
        self.shares.resize(peers, Share::default());
    }

    /// Begins a turn.
    pub fn begin(&mut self) {
        self.shares.fill(Share::default());
        self.datagrams = Share::default();
    }

    pub fn share(&mut self, peer: usize) -> &mut Share {
        &mut self.shares[peer]
    }

    /// Puts the token behind those that wait already.
    pub fn wait(&mut self, token: u64) {
        if !self.waits(token) {
            self.waiting.push_back(token);
        }
    }

    pub fn waits(&self, token: u64) -> bool {
        self.waiting.contains(&token)
    }

    /// The connections that waited for this turn, in order.
    pub fn take_waiting(&mut self) -> VecDeque<u64> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_for_one_turn_and_one_peer() {
        let mut turns = Turns::new(2);
        while !turns.share(0).is_used_up() {
            turns.share(0).use_up(65_536);
        }
        assert!(!turns.share(1).is_used_up());
        turns.begin();
        assert!(!turns.share(0).is_used_up());
    }

    #[test]
    fn short_items_use_up_a_share_too() {
        let mut share = Share::default();
        let items = (0..).take_while(|_| {
            share.use_up(1);
            !share.is_used_up()
        });
        assert!(items.count() < PEER_BYTES / ITEM_BYTES);
    }

    #[test]
    fn each_waits_once_and_in_order() {
        let mut turns = Turns::new(0);
        for token in [7, 3, 7] {
            turns.wait(token);
        }
        assert_eq!(turns.take_waiting(), [7, 3]);
        assert!(!turns.waits(7));
    }
}
