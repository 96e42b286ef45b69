//! Probes in flight: the purpose of each, and when it counts as lost.
//!
//! A probe that counts as lost is remembered a little longer: a late answer still is information
//! about the path.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::types::SessionId;

/// Most probes remembered; a new one replaces the oldest.
const REMEMBERED: usize = 64;
/// Time after which an answer is ignored.
const FORGOTTEN_NS: u64 = 10_000_000_000;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePurpose {
    /// To learn whether the peer is alive.
    Alive,
    /// To learn whether it is alive, with packets of this size.
    Full(u16),
    /// To learn whether the path takes packets of this size.
    Search(u16),
    /// To learn whether the peer receives at this address (path validation, RFC 9000, section 8.2).
    Path(SocketAddr),
}

/// A probe in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Its number.
    pub id: u32,
    /// The session of its packet.
    pub session: SessionId,
    /// Its purpose.
    pub purpose: ProbePurpose,
    /// When it was sent.
    pub sent_ns: u64,
    lost: bool,
}

/// All probes in flight.
#[derive(Debug)]
pub struct Probes {
    next_id: u32,
    sent: VecDeque<Probe>,
}

impl Probes {
    /// No probes. The first one gets the number `first_id`.
    pub fn new(first_id: u32) -> Self {
        Self { next_id: first_id, sent: VecDeque::with_capacity(REMEMBERED) }
    }

    /// Notes that a probe is sent; returns its number.
    pub fn note_sent(&mut self, session: SessionId, purpose: ProbePurpose, now_ns: u64) -> u32 {
        while self.sent.len() >= REMEMBERED {
            self.sent.pop_front();
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.sent.push_back(Probe { id, session, purpose, sent_ns: now_ns, lost: false });
        id
    }

    /// Returns the probe of an answer, if this is its first one.
    pub fn take_answered(&mut self, id: u32, sent_ns: u64) -> Option<Probe> {
        let at = self.sent.iter().position(|p| p.id == id && p.sent_ns == sent_ns)?;
        self.sent.remove(at)
    }

    /// A probe that was sent longer than `timeout_ns` ago; each is returned once.
    pub fn take_lost(&mut self, timeout_ns: u64, now_ns: u64) -> Option<Probe> {
        let old = |p: &Probe| now_ns.saturating_sub(p.sent_ns) >= FORGOTTEN_NS && p.lost;
        while self.sent.front().is_some_and(old) {
            self.sent.pop_front();
        }
        let late = |p: &&mut Probe| !p.lost && now_ns.saturating_sub(p.sent_ns) >= timeout_ns;
        let probe = self.sent.iter_mut().find(late)?;
        probe.lost = true;
        Some(*probe)
    }

    /// When the next probe counts as lost.
    pub fn deadline_ns(&self, timeout_ns: u64) -> u64 {
        let next = self.sent.iter().find(|p| !p.lost);
        next.map_or(u64::MAX, |p| p.sent_ns.saturating_add(timeout_ns))
    }

    /// Forgets the probes of a session that is over.
    pub fn forget_session(&mut self, session: SessionId) {
        self.sent.retain(|p| p.session != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);

    #[test]
    fn a_probe_is_answered_or_lost_once_and_may_be_answered_late() {
        let mut probes = Probes::new(u32::MAX);
        let (a, b) = (
            probes.note_sent(A, ProbePurpose::Alive, 0),
            probes.note_sent(A, ProbePurpose::Full(1500), 10),
        );
        assert_eq!((a, b), (u32::MAX, 0));
        assert_eq!(probes.deadline_ns(100), 100);
        assert!(probes.take_answered(a, 0).is_some() && probes.take_answered(a, 0).is_none());
        assert_eq!(probes.take_lost(100, 109), None);
        assert_eq!(probes.take_lost(100, 110).map(|p| p.id), Some(b));
        assert_eq!((probes.take_lost(100, 200), probes.deadline_ns(100)), (None, u64::MAX));
        assert_eq!(probes.take_answered(b, 10).map(|p| p.purpose), Some(ProbePurpose::Full(1500)));
    }

    #[test]
    fn an_answer_that_nobody_asked_for_is_none() {
        let mut probes = Probes::new(1);
        let id = probes.note_sent(A, ProbePurpose::Alive, 5);
        assert!(probes.take_answered(id, 6).is_none() && probes.take_answered(id + 1, 5).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let mut probes = Probes::new(1);
        for now_ns in 0..10_000 {
            probes.note_sent(A, ProbePurpose::Alive, now_ns);
        }
        assert_eq!(probes.sent.len(), REMEMBERED);
        while probes.take_lost(1, 20_000).is_some() {}
        assert!(probes.take_lost(1, 2 * FORGOTTEN_NS).is_none() && probes.sent.is_empty());
    }
}
