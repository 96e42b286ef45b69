//! The hub: who asks for whom, where they are, and what is passed on between them.
//!
//! Two peers are told of each other only while both ask for each other, so that no peer learns an
//! address, or gets a piece, of a peer that it does not have in its own configuration. A peer that
//! asks no more, or is down, is forgotten.
//!
//! Pieces are passed on at a rate, for each peer that sends and each that receives, and so is each
//! peer told what others do: a spoke cannot have the hub flood another. What a peer was not told
//! because of that it is told later ([`Hub::tick`]), as it is then; its own questions are always
//! answered.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use super::message::{HubMessage, Label, Piece, Standing};
use crate::rate::{Rate, RateLimit};

const SECOND_NS: u64 = 1_000_000_000;
/// A peer that has not asked for another for this time is no longer interested in it.
const ASKS_NS: u64 = 30 * SECOND_NS;
/// Pieces that one peer has passed on to another. A handshake is about twenty.
const PASSED: RateLimit = RateLimit::per_second(16, 128);
/// Pieces that one peer gets of all others.
const RECEIVED: RateLimit = RateLimit::per_second(128, 256);
/// Changes that a peer is told of another, and of all others.
const CHANGES: RateLimit = RateLimit::per_second(1, 8);
const ALL_CHANGES: RateLimit = RateLimit::per_second(64, 128);

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
    told: Option<Standing>,
    /// What the one that asks is told of the other, and gets of it.
    changes: Rate,
    passed: Rate,
}

impl Interest {
    /// It begins with a question.
    fn new(label: Label) -> Self {
        let (changes, passed) = (Rate::default(), Rate::default());
        Self { label, until_ns: 0, told: None, changes, passed }
    }
}

/// What a peer gets of all others.
#[derive(Debug, Default)]
struct Received {
    pieces: Rate,
    changes: Rate,
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
    received: HashMap<usize, Received>,
    /// The next look for those who ask no more, or were not told of a change.
    look_ns: u64,
}

impl Hub {
    /// A peer is up, and its datagrams come from this address.
    pub fn up(&mut self, peer: usize, address: SocketAddr, now_ns: u64) -> Vec<HubAction> {
        if self.up.insert(peer, address) == Some(address) {
            return Vec::new();
        }
        self.tell_of(peer, now_ns)
    }

    /// A peer is down, or was started again: the hub forgets its questions.
    pub fn down(&mut self, peer: usize, now_ns: u64) -> Vec<HubAction> {
        let mut actions = self.forget_asks(peer, now_ns);
        if self.up.remove(&peer).is_some() {
            actions.extend(self.tell_of(peer, now_ns));
        }
        actions
    }

    /// What a peer asked for is forgotten.
    fn forget_asks(&mut self, peer: usize, now_ns: u64) -> Vec<HubAction> {
        let mut actions = Vec::new();
        for about in self.asked.remove(&peer).into_iter().flat_map(HashMap::into_values) {
            self.interests.remove(&AskedPair { about, asks: peer });
            actions.push(HubAction::Label { to: peer, from: about, label: None });
            actions.extend(self.tell(about, peer, now_ns));
        }
        actions
    }

    /// Ends the interest of one peer in another, and takes back its label.
    fn end_interest(&mut self, pair: AskedPair) -> Option<HubAction> {
        let gone = self.interests.remove(&pair)?;
        if let Some(labels) = self.asked.get_mut(&pair.asks) {
            labels.remove(&gone.label);
        }
        Some(HubAction::Label { to: pair.asks, from: pair.about, label: None })
    }

    /// A peer is not configured any more, or not to be relayed.
    pub fn remove(&mut self, peer: usize, now_ns: u64) -> Vec<HubAction> {
        let mut actions = self.down(peer, now_ns);
        let all = AskedPair { about: peer, asks: 0 }..=AskedPair { about: peer, asks: usize::MAX };
        let askers: Vec<_> = self.interests.range(all).map(|(pair, _)| pair.asks).collect();
        for asks in askers {
            actions.extend(self.end_interest(AskedPair { about: peer, asks }));
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
        let mut actions = self.unlabel(asks, label, about, now_ns);
        let labels = self.asked.entry(asks).or_default();
        let may_ask = labels.len() < super::MOST_ASKED || labels.contains_key(&label);
        let Some(about) = about.filter(|_| may_ask) else {
            let message = HubMessage::Known { label, standing: Standing::Unknown };
            actions.push(HubAction::Tell { to: asks, message });
            return actions;
        };
        labels.insert(label, about);
        let until_ns = now_ns.saturating_add(ASKS_NS);
        let pair = AskedPair { about, asks };
        let before = self.interests.get(&pair).map(|interest| interest.label);
        if let Some(before) = before.filter(|before| *before != label) {
            labels.remove(&before);
        }
        let interest = self.interests.entry(pair).or_insert_with(|| Interest::new(label));
        (interest.label, interest.until_ns) = (label, until_ns);
        if before != Some(label) {
            actions.push(HubAction::Label { to: asks, from: about, label: Some(label) });
        }
        actions.extend(self.answer(pair));
        actions.extend(self.tell(about, asks, now_ns));
        actions
    }

    /// A label is for another peer now, or for none.
    fn unlabel(
        &mut self,
        asks: usize,
        label: Label,
        about: Option<usize>,
        now_ns: u64,
    ) -> Vec<HubAction> {
        let Some(labels) = self.asked.get_mut(&asks) else { return Vec::new() };
        let Some(before) = labels.get(&label).copied().filter(|now| Some(*now) != about) else {
            return Vec::new();
        };
        labels.remove(&label);
        self.interests.remove(&AskedPair { about: before, asks });
        let mut actions = vec![HubAction::Label { to: asks, from: before, label: None }];
        actions.extend(self.tell(before, asks, now_ns));
        actions
    }

    /// A piece of `from`, for the peer that has this label there; `None`: it is not passed on.
    pub fn piece(&mut self, from: usize, piece: Piece, now_ns: u64) -> Option<PassedOn> {
        let to = *self.asked.get(&from)?.get(&piece.label)?;
        if !self.up.contains_key(&to) {
            return None;
        }
        // The rates are in what the receiver asks for: a sender cannot begin them anew.
        let interest = self.interests.get_mut(&AskedPair { about: from, asks: to })?;
        let all = &mut self.received.entry(to).or_default().pieces;
        let is_passed = interest.passed.take(PASSED, now_ns) && all.take(RECEIVED, now_ns);
        let message = HubMessage::FromPeer(Piece { label: interest.label, ..piece });
        is_passed.then_some(PassedOn { to, message })
    }

    /// Forgets those who ask no more, and tells what could not be told before.
    pub fn tick(&mut self, now_ns: u64) -> Vec<HubAction> {
        if now_ns < self.look_ns {
            return Vec::new();
        }
        self.look_ns = now_ns.saturating_add(SECOND_NS);
        let is_over = |(_, interest): &(&AskedPair, &Interest)| now_ns >= interest.until_ns;
        let over: Vec<_> = self.interests.iter().filter(is_over).map(|(pair, _)| *pair).collect();
        let mut actions = Vec::new();
        for pair in over {
            actions.extend(self.end_interest(pair));
            actions.extend(self.tell(pair.about, pair.asks, now_ns));
        }
        let is_late = |(pair, interest): &(&AskedPair, &Interest)| {
            interest.told != Some(self.standing(**pair))
        };
        let late: Vec<_> = self.interests.iter().filter(is_late).map(|(pair, _)| *pair).collect();
        actions.extend(late.into_iter().filter_map(|pair| self.tell_change(pair, now_ns)));
        actions
    }

    /// Tells all who ask for a peer.
    fn tell_of(&mut self, about: usize, now_ns: u64) -> Vec<HubAction> {
        let all = AskedPair { about, asks: 0 }..=AskedPair { about, asks: usize::MAX };
        let askers: Vec<_> = self.interests.range(all).map(|(pair, _)| pair.asks).collect();
        askers.into_iter().filter_map(|asks| self.tell(asks, about, now_ns)).collect()
    }

    fn tell(&mut self, asks: usize, about: usize, now_ns: u64) -> Option<HubAction> {
        self.tell_change(AskedPair { about, asks }, now_ns)
    }

    /// Tells a peer the standing of another, if it was told another one last, and not too often.
    fn tell_change(&mut self, pair: AskedPair, now_ns: u64) -> Option<HubAction> {
        let standing = self.standing(pair);
        let interest = self.interests.get_mut(&pair)?;
        if interest.told == Some(standing) {
            return None;
        }
        let all = &mut self.received.entry(pair.asks).or_default().changes;
        let is_told = all.allows(ALL_CHANGES, now_ns)
            && interest.changes.take(CHANGES, now_ns)
            && all.take(ALL_CHANGES, now_ns);
        if is_told { self.answer(pair) } else { None }
    }

    /// Tells a peer the standing of another.
    fn answer(&mut self, pair: AskedPair) -> Option<HubAction> {
        let standing = self.standing(pair);
        let interest = self.interests.get_mut(&pair)?;
        interest.told = Some(standing);
        let message = HubMessage::Known { label: interest.label, standing };
        Some(HubAction::Tell { to: pair.asks, message })
    }

    /// Of the peer that is asked for, to the one that asks.
    fn standing(&self, AskedPair { about, asks }: AskedPair) -> Standing {
        let asks_back = self.interests.contains_key(&AskedPair { about: asks, asks: about });
        match self.up.get(&about) {
            None => Standing::Down,
            Some(_) if !asks_back => Standing::Silent,
            Some(address) => Standing::Mutual(*address),
        }
    }
}
