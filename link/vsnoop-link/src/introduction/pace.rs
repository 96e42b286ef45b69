//! How often a host asks its hub for the peers behind it, and how many questions a hub takes.
//!
//! A host asks for each of N peers, and the hub tells it what changes. A question is repeated only
//! so that the hub goes on remembering it, in rounds that are longer the more peers there are: a
//! host asks no more than about [`SETTLED_PER_S`] times a second, whatever N is. It says how long
//! the hub is to remember the question, and the hub says how long it does.
//!
//! A question without an answer is repeated after waits that double, up to a round.

use super::message::{LEAST_KEPT_S, SECOND_NS};
use crate::rate::{Rate, RateLimit};

/// Questions of a host in a second, once the hub has answered; a third more at the most, because
/// the times are spread.
const SETTLED_PER_S: u64 = 2;
/// Until the first question is repeated, if there is no answer.
const FIRST_RETRY_NS: u64 = SECOND_NS;
/// The shortest round: the hubs of older versions remember a question for three of it.
const SHORTEST_ROUND_NS: u64 = 10 * SECOND_NS;
/// A question is repeated so often in the time for which the hub remembers it.
const ROUNDS_KEPT: u64 = 3;
/// The hub remembers no question for longer than this: for [`super::MOST_ASKED`] peers it has three
/// rounds.
const MOST_KEPT_S: u16 = 7200;

/// Questions that a hub takes of each peer, whatever others ask. A host of N peers that has been
/// answered asks less often.
const OWN: RateLimit = RateLimit::per_second(8, 32);
/// Questions of each peer beyond that, as long as there is room for all of them.
const MORE: RateLimit = RateLimit::per_second(super::ASKS_PER_S, 2 * super::ASKS_PER_S);
const MORE_OF_ALL: RateLimit = RateLimit::per_second(4096, 4096);

/// The pace of a host, by its number of peers behind a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskPace {
    peers: u64,
}

impl AskPace {
    pub fn new(peers: usize) -> Self {
        Self { peers: peers as u64 }
    }

    fn round_ns(self) -> u64 {
        (self.peers * SECOND_NS / SETTLED_PER_S).max(SHORTEST_ROUND_NS)
    }

    /// How long the hub is to remember a question, in seconds.
    pub fn keep_s(self) -> u16 {
        let keep_s = (ROUNDS_KEPT * self.round_ns()).div_ceil(SECOND_NS);
        u16::try_from(keep_s).unwrap_or(u16::MAX).min(MOST_KEPT_S)
    }

    /// Until a question is repeated that the hub has answered, and remembers for `kept_s` seconds.
    /// It is random, so that the questions for all peers are spread over the round.
    pub fn settled_ns(self, kept_s: u16) -> u64 {
        let kept_ns = u64::from(kept_s) * SECOND_NS / ROUNDS_KEPT;
        let wait_ns = self.round_ns().min(kept_ns).max(SHORTEST_ROUND_NS);
        wait_ns - fastrand::u64(0..=wait_ns / 2)
    }

    /// Until a question is repeated that was asked `tries` times without an answer.
    pub fn retry_ns(self, tries: u32) -> u64 {
        let all_asked_ns = self.peers * SECOND_NS / super::ASKS_PER_S;
        let doubled = all_asked_ns.max(FIRST_RETRY_NS) << tries.saturating_sub(1).min(16);
        doubled.min(self.round_ns())
    }
}

/// How long a hub remembers a question of which the host says this, in seconds.
pub(super) fn kept_s(keep_s: u16) -> u16 {
    keep_s.clamp(LEAST_KEPT_S, MOST_KEPT_S)
}

/// The questions that a hub has taken of one peer.
#[derive(Debug, Default)]
pub(super) struct Questions {
    own: Rate,
    more: Rate,
}

impl Questions {
    /// Takes another question, if the hub has time for it. `of_all`: what was taken of all peers
    /// beyond their own.
    pub fn take_question(&self, of_all: &Rate, now_ns: u64) -> bool {
        if self.own.take(OWN, now_ns) {
            return true;
        }
        let has_room = self.more.allows(MORE, now_ns) && of_all.take(MORE_OF_ALL, now_ns);
        has_room && self.more.take(MORE, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::introduction::MOST_ASKED;

    #[test]
    fn the_hub_remembers_three_rounds_of_as_many_peers_as_a_host_may_have() {
        for peers in [0, 1, 20, 21, 1000, MOST_ASKED] {
            let pace = AskPace::new(peers);
            let kept_s = kept_s(pace.keep_s());
            assert_eq!(kept_s, pace.keep_s(), "{peers} peers");
            assert!(u64::from(kept_s) * SECOND_NS >= ROUNDS_KEPT * pace.round_ns());
            let settled_ns = pace.settled_ns(kept_s);
            assert!((pace.round_ns() / 2..=pace.round_ns()).contains(&settled_ns));
            assert_eq!(pace.retry_ns(u32::MAX), pace.round_ns());
        }
        assert!(AskPace::new(1000).settled_ns(LEAST_KEPT_S) <= 10 * SECOND_NS, "an older hub");
    }
}
