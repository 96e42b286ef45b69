//! The sessions over UDP whose records a receiver opens, by the numbers in these.
//!
//! This host has chosen the number of 32 bits for the session; a hub adds labels to it. So a record
//! may be of more than one session: two can have one number, and a number with a label can be
//! another's. Its keys say which one it is of.

use std::collections::HashMap;

use super::session::DatagramSession;
use crate::threads::pairs::SessionNumber;
use vsnoop_link::introduction::Label;
use vsnoop_link::session::SessionId;
use vsnoop_link::slots::PeerSlot;
use vsnoop_link::wire::seal::stream_of;

/// A session, as its records are received.
pub struct InstalledSession {
    pub peer: PeerSlot,
    pub session: SessionId,
    pub opened: DatagramSession,
    /// Records of this session may have labels.
    pub is_with_hub: bool,
}

impl InstalledSession {
    /// Whether it would open a record with this stream and counter.
    fn opens(&self, record: &[u8], counter: u64) -> bool {
        let opener = self.opened.openers.get(usize::from(stream_of(counter)));
        opener.is_some_and(|opener| opener.opens(record))
    }
}

/// The session that a record is of, and its label there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOwner {
    number: SessionNumber,
    /// Position among the sessions with this number.
    at: usize,
    pub label: Option<Label>,
}

#[derive(Default)]
pub struct InstalledSessions {
    by_number: HashMap<SessionNumber, Vec<InstalledSession>>,
    /// Numbers of sessions with hubs, each once.
    hubs: Vec<SessionNumber>,
}

impl InstalledSessions {
    /// Adds a session whose records have this number. An earlier one with the same name gives way.
    pub fn install(&mut self, number: SessionNumber, installed: InstalledSession) {
        self.retire(installed.session);
        self.by_number.entry(number).or_default().push(installed);
        self.list_hubs();
    }

    pub fn retire(&mut self, session: SessionId) {
        self.by_number.retain(|_, alike| {
            alike.retain(|installed| installed.session != session);
            !alike.is_empty()
        });
        self.list_hubs();
    }

    /// The peers that are hubs now.
    pub fn note_hubs(&mut self, is_hub: impl Fn(PeerSlot) -> bool) {
        for installed in self.by_number.values_mut().flatten() {
            installed.is_with_hub = is_hub(installed.peer);
        }
        self.list_hubs();
    }

    fn list_hubs(&mut self) {
        let is_with_hub =
            |alike: &Vec<InstalledSession>| alike.iter().any(|installed| installed.is_with_hub);
        let hubs = self.by_number.iter().filter(|(_, alike)| is_with_hub(alike));
        self.hubs = hubs.map(|(number, _)| *number).collect();
    }

    /// The session whose record this is, by what its header says. If that may be several, those are
    /// asked that would open it; `None`: it is of none.
    pub fn find_owner(
        &self,
        record: &[u8],
        number: SessionNumber,
        counter: u64,
    ) -> Option<RecordOwner> {
        let mut all = self.list_candidates(number);
        let first = all.next()?;
        let Some(second) = all.next() else { return Some(first) };
        let opens = |owner: &RecordOwner| {
            let installed = self.by_number.get(&owner.number).and_then(|alike| alike.get(owner.at));
            installed.is_some_and(|installed| installed.opens(record, counter))
        };
        // If none does, it counts as refused by the first.
        Some([first, second].into_iter().chain(all).find(opens).unwrap_or(first))
    }

    fn list_candidates(&self, number: SessionNumber) -> impl Iterator<Item = RecordOwner> {
        let alike = self.by_number.get(&number).map_or(0, Vec::len);
        let plain = (0..alike).map(move |at| RecordOwner { number, at, label: None });
        plain.chain(self.hubs.iter().flat_map(move |hub| self.list_labelled(*hub, number)))
    }

    /// Sessions with hubs of which a record with this number may be, with a label.
    fn list_labelled(
        &self,
        hub: SessionNumber,
        number: SessionNumber,
    ) -> impl Iterator<Item = RecordOwner> {
        let label = u16::try_from(number.0.wrapping_sub(hub.0)).ok();
        let label = label.and_then(Label::new);
        let alike = self.by_number.get(&hub).filter(|_| label.is_some());
        let alike = alike.into_iter().flatten().enumerate();
        let with_hubs = alike.filter(|(_, installed)| installed.is_with_hub);
        with_hubs.map(move |(at, _)| RecordOwner { number: hub, at, label })
    }

    pub fn get_mut(&mut self, owner: RecordOwner) -> Option<&mut InstalledSession> {
        self.by_number.get_mut(&owner.number)?.get_mut(owner.at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vsnoop_link::compress::Codecs;
    use vsnoop_link::wire::seal::{
        HEADER_BYTES, Material, Opener, Sealer, Suite, TAG_BYTES, header_of,
    };

    use super::*;

    /// Installs a session whose keys are all `session`; the peer's end of it.
    fn install(all: &mut InstalledSessions, session: u8, index: u32, is_with_hub: bool) -> Sealer {
        let keys = Material { key: [session; 32], nonce: [session; 12] };
        let opener = Opener::new(Suite::Aes128Gcm, &keys, 0, 0);
        let opened = DatagramSession::new(vec![opener], Codecs::ALL, Arc::default());
        let (peer, session) = (PeerSlot(session.into()), SessionId(session.into()));
        all.install(SessionNumber(index), InstalledSession { peer, session, opened, is_with_hub });
        Sealer::new(Suite::Aes128Gcm, &keys, index, 0, 0)
    }

    fn record(sealer: &mut Sealer, label: u16) -> Vec<u8> {
        let mut record = vec![7; HEADER_BYTES + 100 + TAG_BYTES];
        assert!(sealer.seal_labelled(&mut record, label));
        record
    }

    /// The session that opens a record, and the label of the record.
    fn open(all: &mut InstalledSessions, mut record: Vec<u8>) -> Option<(u64, u16)> {
        let (index, number) = header_of(&record).unwrap();
        let owner = all.find_owner(&record, SessionNumber(index), number)?;
        let installed = all.get_mut(owner).unwrap();
        installed.opened.openers[0].open(&mut record).ok()?;
        Some((installed.session.0, owner.label.map_or(0, Label::number)))
    }

    #[test]
    fn records_of_two_sessions_with_one_number_come_to_their_own() {
        let mut all = InstalledSessions::default();
        let mut sealers = [1, 2].map(|session| install(&mut all, session, 7, false));
        for _ in 0..3 {
            for (sealer, session) in sealers.iter_mut().zip([1, 2]) {
                assert_eq!(open(&mut all, record(sealer, 0)), Some((session, 0)));
            }
        }
        let repeated = record(&mut sealers[1], 0);
        assert_eq!(open(&mut all, repeated.clone()), Some((2, 0)));
        assert_eq!(open(&mut all, repeated), None);
        // One of neither, and one after the other session has ended.
        let mut unknown = install(&mut InstalledSessions::default(), 3, 7, false);
        assert_eq!(open(&mut all, record(&mut unknown, 0)), None);
        all.retire(SessionId(1));
        assert_eq!(open(&mut all, record(&mut sealers[1], 0)), Some((2, 0)));
        assert_eq!(open(&mut all, record(&mut sealers[0], 0)), None);
    }

    #[test]
    fn a_label_that_makes_the_number_of_another_session_takes_no_record_away() {
        let mut all = InstalledSessions::default();
        let [mut hub, mut other_hub, mut direct] = [(1, 100, true), (2, 90, true), (3, 105, false)]
            .map(|(session, index, is_hub)| install(&mut all, session, index, is_hub));
        for _ in 0..3 {
            // All three have 105 in their headers.
            assert_eq!(open(&mut all, record(&mut hub, 5)), Some((1, 5)));
            assert_eq!(open(&mut all, record(&mut other_hub, 15)), Some((2, 15)));
            assert_eq!(open(&mut all, record(&mut direct, 0)), Some((3, 0)));
            // The number of the one hub is that of the other with a label.
            assert_eq!(open(&mut all, record(&mut hub, 0)), Some((1, 0)));
            assert_eq!(open(&mut all, record(&mut other_hub, 10)), Some((2, 10)));
        }
        // Those of a peer that is no hub any more have no labels.
        all.note_hubs(|peer| peer == PeerSlot(1));
        assert_eq!(open(&mut all, record(&mut other_hub, 0)), Some((2, 0)));
        assert_eq!(open(&mut all, record(&mut other_hub, 1)), None);
        assert_eq!(open(&mut all, record(&mut hub, u16::MAX)), Some((1, u16::MAX)));
    }
}
