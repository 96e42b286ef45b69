//! Which of two sessions stays.
//!
//! Both ends may dial at once, a handshake may be complete at one end only, and the two learn of
//! sessions in different order. They agree because both compare sessions by a total order of values
//! that both know. First comes the *epoch*, a Lamport clock: one higher than all epochs that the
//! initiator has seen or tried, so that an initiator that knows of a session replaces it. Sessions
//! of the same epoch were dialled at once: that of the end with the larger public key stays.
//!
//! Epochs are counted between two instances. A restarted instance begins at 1, and sessions of its
//! former instance are void.

use super::types::{End, SessionInfo};

/// The rank of a session; the higher one stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    epoch: u32,
    favoured: bool,
}

impl Rank {
    /// `favoured`: our key is the larger.
    pub fn new(info: &SessionInfo, favoured: bool) -> Self {
        Self { epoch: info.epoch, favoured: (info.initiator == End::Us) == favoured }
    }
}

/// The epochs between us and one instance of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epochs {
    highest: u32,
    instance: Option<u64>,
}

impl Epochs {
    /// For the next handshake.
    pub fn advance(&mut self) -> u32 {
        self.highest = self.highest.saturating_add(1);
        self.highest
    }

    /// A session was made. Returns whether the peer is another instance than before.
    pub fn note_seen(&mut self, info: &SessionInfo) -> bool {
        let restarted = self.instance.is_some_and(|instance| instance != info.instance);
        self.instance = Some(info.instance);
        // Includes epochs that we dialled before the peer's instance was known: it may have
        // received them.
        self.highest = self.highest.max(info.epoch);
        restarted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionId;

    fn session(initiator: End, epoch: u32, instance: u64) -> SessionInfo {
        let address = "192.0.2.1:1".parse().unwrap();
        SessionInfo { id: SessionId(1), initiator, epoch, instance, address, introduced: false }
    }

    #[test]
    fn both_ends_rank_two_sessions_alike() {
        for (epoch_a, epoch_b) in [(1, 1), (1, 2), (2, 1)] {
            // A dialled one, B the other; A has the larger key.
            let at_a = Rank::new(&session(End::Us, epoch_a, 0), true)
                > Rank::new(&session(End::Peer, epoch_b, 0), true);
            let at_b = Rank::new(&session(End::Peer, epoch_a, 0), false)
                > Rank::new(&session(End::Us, epoch_b, 0), false);
            assert_eq!(at_a, at_b);
            assert_eq!(at_a, epoch_a >= epoch_b);
        }
    }

    #[test]
    fn an_initiator_that_knows_of_a_session_replaces_it() {
        let mut epochs = Epochs::default();
        let old = session(End::Peer, 7, 1);
        assert!(!epochs.note_seen(&old));
        let new = session(End::Us, epochs.advance(), 1);
        for favoured in [true, false] {
            assert!(Rank::new(&new, favoured) > Rank::new(&old, favoured));
        }
    }

    #[test]
    fn another_instance_is_noticed_and_epochs_never_wrap() {
        let mut epochs = Epochs::default();
        assert!(!epochs.note_seen(&session(End::Peer, u32::MAX, 1)));
        assert!(epochs.note_seen(&session(End::Peer, 1, 2)));
        assert_eq!((epochs.advance(), epochs.advance()), (u32::MAX, u32::MAX));
    }
}
