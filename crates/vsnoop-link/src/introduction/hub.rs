//! The hub: who asks for whom, where they are, and what is passed on between them.
//!
//! Two peers are told of each other only while both ask for each other, so that no peer learns an
//! address, or gets a piece, of a peer that it does not have in its own configuration. A peer that
//! asks no more, or is down, is forgotten.
//!
//! Pieces are passed on at a rate, for each peer that sends and each that receives: a spoke cannot
//! have the hub flood another.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use super::message::{HubMessage, Label, Piece, Standing};

const SECOND_NS: u64 = 1_000_000_000;
/// A peer that has not asked for another for this time is no longer interested in it.
const ASKS_NS: u64 = 30 * SECOND_NS;
/// Pieces that one peer has passed on to another; per second, and at once. A handshake is about
/// twenty.
const PASSED_PER_S: u64 = 16;
const PASSED_BURST: u64 = 128;
/// Pieces that one peer gets of all others.
const RECEIVED_PER_S: u64 = 128;
const RECEIVED_BURST: u64 = 256;

/// What the caller does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubAction {
    /// Say this to a peer.
    Tell { to: usize, message: HubMessage },
    /// Frames of `from` have this label for `to`; `None`: none.
    Label { to: usize, from: usize, label: Option<Label> },
}

/// A piece for another peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOn {
    pub to: usize,
    pub message: HubMessage,
}

/// One peer asks for another.
#[derive(Debug)]
struct Interest {
    label: Label,
    until_ns: u64,
    /// What it was told last.
    told: Standing,
    passed: PieceRate,
}

/// Who asks for whom; peers are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AskedPair {
    about: usize,
    asks: usize,
}

#[derive(Debug, Default)]
pub struct Hub {
    interests: BTreeMap<AskedPair, Interest>,
    asked: HashMap<usize, HashMap<Label, usize>>,
    /// Addresses of peers that are up.
    up: HashMap<usize, SocketAddr>,
    received: HashMap<usize, PieceRate>,
    /// The next look for those who ask no more.
    expire_ns: u64,
}

/// When what was taken is paid for (GCRA).
#[derive(Clone, Copy, Debug, Default)]
struct PieceRate {
    paid_ns: u64,
}

impl PieceRate {
    fn take(&mut self, per_s: u64, burst: u64, now_ns: u64) -> bool {
        let each_ns = SECOND_NS / per_s;
        let may = self.paid_ns.saturating_sub(now_ns) < burst * each_ns;
        if may {
            self.paid_ns = self.paid_ns.max(now_ns) + each_ns;
        }
        may
    }
}

impl Hub {
    /// A peer is up, and its datagrams come from this address.
    pub fn up(&mut self, peer: usize, address: SocketAddr) -> Vec<HubAction> {
        if self.up.insert(peer, address) == Some(address) {
            return Vec::new();
        }
        self.tell_of(peer)
    }

    /// A peer is down, or was started again: the hub forgets its questions.
    pub fn down(&mut self, peer: usize) -> Vec<HubAction> {
        let mut actions = self.forget_asks(peer);
        if self.up.remove(&peer).is_some() {
            actions.extend(self.tell_of(peer));
        }
        actions
    }

    /// What a peer asked for is forgotten.
    fn forget_asks(&mut self, peer: usize) -> Vec<HubAction> {
        let mut actions = Vec::new();
        for about in self.asked.remove(&peer).into_iter().flat_map(HashMap::into_values) {
            self.interests.remove(&AskedPair { about, asks: peer });
            actions.push(HubAction::Label { to: peer, from: about, label: None });
            actions.extend(self.tell(about, peer));
        }
        actions
    }

    /// A peer is not configured any more, or not to be relayed.
    pub fn remove(&mut self, peer: usize) -> Vec<HubAction> {
        let mut actions = self.down(peer);
        let all = AskedPair { about: peer, asks: 0 }..=AskedPair { about: peer, asks: usize::MAX };
        let askers: Vec<_> = self.interests.range(all).map(|(pair, _)| pair.asks).collect();
        for asks in askers {
            let gone = self.interests.remove(&AskedPair { about: peer, asks });
            if let (Some(gone), Some(labels)) = (gone, self.asked.get_mut(&asks)) {
                labels.remove(&gone.label);
                actions.push(HubAction::Label { to: asks, from: peer, label: None });
            }
        }
        self.received.remove(&peer);
        actions
    }

    /// A peer that is up asks for another, which is `about`; `None`: the hub has none such.
    pub fn asked(
        &mut self,
        asks: usize,
        label: Label,
        about: Option<usize>,
        now_ns: u64,
    ) -> Vec<HubAction> {
        let about = about.filter(|about| *about != asks);
        let mut actions = self.unlabel(asks, label, about);
        let labels = self.asked.entry(asks).or_default();
        let Some(about) = about.filter(|_| labels.len() < super::MOST_ASKED) else {
            let message = HubMessage::Known { label, standing: Standing::Unknown };
            actions.push(HubAction::Tell { to: asks, message });
            return actions;
        };
        labels.insert(label, about);
        let until_ns = now_ns.saturating_add(ASKS_NS);
        let pair = AskedPair { about, asks };
        let before = self.interests.get(&pair).map(|interest| (interest.label, interest.passed));
        let (told, passed) = (Standing::Unknown, before.unwrap_or((label, PieceRate::default())).1);
        self.interests.insert(pair, Interest { label, until_ns, told, passed });
        if before.map(|(label, _)| label) != Some(label) {
            if let Some((before, _)) = before
                && let Some(labels) = self.asked.get_mut(&asks)
            {
                labels.remove(&before);
            }
            actions.push(HubAction::Label { to: asks, from: about, label: Some(label) });
        }
        actions.extend(self.tell(asks, about));
        actions.extend(self.tell(about, asks));
        actions
    }

    /// A label is for another peer now, or for none.
    fn unlabel(&mut self, asks: usize, label: Label, about: Option<usize>) -> Vec<HubAction> {
        let Some(labels) = self.asked.get_mut(&asks) else { return Vec::new() };
        let Some(before) = labels.get(&label).copied().filter(|now| Some(*now) != about) else {
            return Vec::new();
        };
        labels.remove(&label);
        self.interests.remove(&AskedPair { about: before, asks });
        let mut actions = vec![HubAction::Label { to: asks, from: before, label: None }];
        actions.extend(self.tell(before, asks));
        actions
    }

    /// A piece of `from`, for the peer that has this label there; `None`: it is not passed on.
    pub fn piece(&mut self, from: usize, piece: Piece, now_ns: u64) -> Option<PassedOn> {
        let to = *self.asked.get(&from)?.get(&piece.label)?;
        let label = self.interests.get(&AskedPair { about: from, asks: to })?.label;
        if !self.up.contains_key(&to) {
            return None;
        }
        let own = self.interests.get_mut(&AskedPair { about: to, asks: from })?;
        let is_passed = own.passed.take(PASSED_PER_S, PASSED_BURST, now_ns)
            && self.received.entry(to).or_default().take(RECEIVED_PER_S, RECEIVED_BURST, now_ns);
        is_passed
            .then_some(PassedOn { to, message: HubMessage::FromPeer(Piece { label, ..piece }) })
    }

    /// Forgets those who ask no more.
    pub fn tick(&mut self, now_ns: u64) -> Vec<HubAction> {
        if now_ns < self.expire_ns {
            return Vec::new();
        }
        self.expire_ns = now_ns.saturating_add(SECOND_NS);
        let is_over = |(_, interest): &(&AskedPair, &Interest)| now_ns >= interest.until_ns;
        let over: Vec<_> = self.interests.iter().filter(is_over).map(|(pair, _)| *pair).collect();
        let mut actions = Vec::new();
        for pair in over {
            let AskedPair { about, asks } = pair;
            let gone = self.interests.remove(&pair);
            if let (Some(gone), Some(labels)) = (gone, self.asked.get_mut(&asks)) {
                labels.remove(&gone.label);
            }
            actions.push(HubAction::Label { to: asks, from: about, label: None });
            actions.extend(self.tell(about, asks));
        }
        actions
    }

    /// Tells all who ask for a peer.
    fn tell_of(&mut self, about: usize) -> Vec<HubAction> {
        let all = AskedPair { about, asks: 0 }..=AskedPair { about, asks: usize::MAX };
        let askers: Vec<_> = self.interests.range(all).map(|(pair, _)| pair.asks).collect();
        askers.into_iter().filter_map(|asks| self.tell(asks, about)).collect()
    }

    /// Tells the peer `asks` the standing of the peer `about`, if it was told another one last.
    fn tell(&mut self, asks: usize, about: usize) -> Option<HubAction> {
        let asks_back = self.interests.contains_key(&AskedPair { about: asks, asks: about });
        let standing = match self.up.get(&about) {
            None => Standing::Down,
            Some(_) if !asks_back => Standing::Silent,
            Some(address) => Standing::Mutual(*address),
        };
        let interest = self.interests.get_mut(&AskedPair { about, asks })?;
        if std::mem::replace(&mut interest.told, standing) == standing {
            return None;
        }
        let message = HubMessage::Known { label: interest.label, standing };
        Some(HubAction::Tell { to: asks, message })
    }
}
