//! The hub: who asks for whom, where they are, and what is passed on between them.
//!
//! Two peers are told of each other only while both ask for each other, so that no peer learns an
//! address, or gets a piece, of a peer that it does not have in its own configuration. A peer that
//! asks no more, or is down, is forgotten.
//!
//! Pieces are passed on at a rate, for each peer that sends and each that receives, and so is each
//! peer told what others do: a spoke cannot have the hub flood another. What a peer was not told
//! because of that it is told later ([`Hub::tick`]), as it is then. A change is told once more
//! after a while, because a message may be lost, and a peer that has been answered asks seldom.
//!
//! Questions are taken at a rate of each peer, and of all beyond that ([`Hub::takes_question`]);
//! those that are taken are answered at once.
//!
//! Work is bounded at a time: one look ([`Hub::tick`]) ends at most [`LOOKS`] interests, and tells
//! at most as much late, and as much once more; the next one, which comes soon, goes on where it
//! was. Peers that were not told take turns, and so do those that one of them asks for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use super::message::{HubMessage, Label, Piece, SECOND_NS, Standing};
use super::pace::{self, Questions};
use crate::rate::{Rate, RateLimit};
use crate::slots::{PeerSlot, Slot};

/// Pieces that one peer has passed on to another. A handshake is about twenty.
const PASSED: RateLimit = RateLimit::per_second(16, 128);
/// Pieces that one peer gets of all others.
const RECEIVED: RateLimit = RateLimit::per_second(128, 256);
/// Changes that a peer is told of another, and of all others.
const CHANGES: RateLimit = RateLimit::per_second(1, 8);
const ALL_CHANGES: RateLimit = RateLimit::per_second(64, 128);
/// Interests that one look ends, and as many that it tells late.
pub(super) const LOOKS: usize = 1024;
/// A change is told once more after this time.
const REPEAT_NS: u64 = 2 * SECOND_NS;
/// Until the next look, if there is more to do.
const SOON_NS: u64 = SECOND_NS / 20;

/// An action of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubAction {
    /// Say this to a peer.
    Tell { to: PeerSlot, message: HubMessage },
    /// Frames of `from` have this label for `to`; `None`: none.
    Label { to: PeerSlot, from: PeerSlot, label: Option<Label> },
}

/// A peer asks for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub label: Label,
    /// `None`: the hub has none such.
    pub about: Option<PeerSlot>,
    /// How long the hub is to remember it, in seconds; 0: it is taken back.
    pub keep_s: u16,
}

/// A piece for another peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOn {
    pub to: PeerSlot,
    pub message: HubMessage,
}

/// One peer asks for another.
#[derive(Debug)]
struct Interest {
    label: Label,
    until_ns: u64,
    /// The standing that it was told last.
    told: Option<Standing>,
    /// Its turn in [`Hub::late`]: it could not be told of a change.
    late: Option<u64>,
    /// When it is told once more; its time in [`Hub::repeats`].
    repeat_ns: Option<u64>,
    /// Bounds how often the one that asks is told of the other, and gets pieces of it.
    changes: Rate,
    passed: Rate,
}

impl Interest {
    /// It begins with a question.
    fn new(label: Label) -> Self {
        let (changes, passed) = (Rate::default(), Rate::default());
        Self { label, until_ns: 0, told: None, late: None, repeat_ns: None, changes, passed }
    }
}

/// Bounds what a peer gets from all others, and what it asks.
#[derive(Debug, Default)]
struct Received {
    pieces: Rate,
    changes: Rate,
    questions: Questions,
}

/// One peer asks for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AskedPair {
    about: PeerSlot,
    asks: PeerSlot,
}

#[derive(Debug, Default)]
pub struct Hub {
    interests: BTreeMap<AskedPair, Interest>,
    asked: HashMap<PeerSlot, HashMap<Label, PeerSlot>>,
    /// Addresses of peers that are up.
    up: HashMap<PeerSlot, SocketAddr>,
    received: HashMap<PeerSlot, Received>,
    /// When each interest ends.
    ends: BTreeSet<(u64, AskedPair)>,
    /// When each is told once more.
    repeats: BTreeSet<(u64, AskedPair)>,
    /// Questions of all beyond those that each peer has to itself.
    questions: Rate,
    late: BTreeMap<LateTurn, PeerSlot>,
    next_turn: u64,
    /// Where the next look at those that were not told begins.
    next_asks: PeerSlot,
    /// The next look for those who ask no more, or were not told of a change.
    look_ns: u64,
    #[cfg(test)]
    pub(super) looks: usize,
}

/// The turn of a peer that was not told of another one's change. In each asker's line those come
/// first that wait for longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LateTurn {
    asks: PeerSlot,
    turn: u64,
}

impl Hub {
    /// A peer is up, and its datagrams come from this address.
    pub fn note_up(&mut self, peer: PeerSlot, address: SocketAddr, now_ns: u64) -> Vec<HubAction> {
        if self.up.insert(peer, address) == Some(address) {
            return Vec::new();
        }
        self.tell_of(peer, now_ns)
    }

    /// A peer is down, or was started again: the hub forgets its questions.
    pub fn note_down(&mut self, peer: PeerSlot, now_ns: u64) -> Vec<HubAction> {
        let mut actions = self.forget_asks(peer, now_ns);
        if self.up.remove(&peer).is_some() {
            actions.extend(self.tell_of(peer, now_ns));
        }
        actions
    }

    /// Forgets the questions of a peer.
    fn forget_asks(&mut self, peer: PeerSlot, now_ns: u64) -> Vec<HubAction> {
        let mut actions = Vec::new();
        for about in self.asked.remove(&peer).into_iter().flat_map(HashMap::into_values) {
            self.remove_interest(AskedPair { about, asks: peer });
            actions.push(HubAction::Label { to: peer, from: about, label: None });
            actions.extend(self.tell_standing(about, peer, now_ns));
        }
        actions
    }

    fn remove_interest(&mut self, pair: AskedPair) -> Option<Interest> {
        let gone = self.interests.remove(&pair)?;
        self.ends.remove(&(gone.until_ns, pair));
        if let Some(turn) = gone.late {
            self.late.remove(&LateTurn { asks: pair.asks, turn });
        }
        if let Some(repeat_ns) = gone.repeat_ns {
            self.repeats.remove(&(repeat_ns, pair));
        }
        Some(gone)
    }

    /// Ends the interest of one peer in another, and takes back its label.
    fn end_interest(&mut self, pair: AskedPair) -> Option<HubAction> {
        let gone = self.remove_interest(pair)?;
        if let Some(labels) = self.asked.get_mut(&pair.asks) {
            labels.remove(&gone.label);
        }
        Some(HubAction::Label { to: pair.asks, from: pair.about, label: None })
    }

    /// A peer is not configured any more, or not to be relayed.
    pub fn remove_peer(&mut self, peer: PeerSlot, now_ns: u64) -> Vec<HubAction> {
        let mut actions = self.note_down(peer, now_ns);
        let all = AskedPair { about: peer, asks: PeerSlot::FIRST }..=AskedPair {
            about: peer,
            asks: PeerSlot::LAST,
        };
        let askers: Vec<_> = self.interests.range(all).map(|(pair, _)| pair.asks).collect();
        for asks in askers {
            let pair = AskedPair { about: peer, asks };
            let Some(label) = self.interests.get(&pair).map(|interest| interest.label) else {
                continue;
            };
            actions.extend(self.end_interest(pair));
            let message = HubMessage::Known { label, standing: Standing::Unknown, kept_s: 0 };
            actions.push(HubAction::Tell { to: asks, message });
        }
        self.received.remove(&peer);
        actions
    }

    /// Whether the hub takes a question of a peer now: to be asked before
    /// [`handle_question`](Self::handle_question), and before it is looked up for whom the question
    /// is. The peer repeats one that is not taken.
    pub fn takes_question(&mut self, asks: PeerSlot, now_ns: u64) -> bool {
        self.received.entry(asks).or_default().questions.take_question(&self.questions, now_ns)
    }

    /// A peer that is up asks for another.
    pub fn handle_question(
        &mut self,
        asks: PeerSlot,
        question: Question,
        now_ns: u64,
    ) -> Vec<HubAction> {
        let Question { label, about, keep_s } = question;
        let about = about.filter(|about| *about != asks && keep_s > 0);
        let mut actions = self.remove_label(asks, label, about, now_ns);
        let labels = self.asked.entry(asks).or_default();
        let may_ask = labels.len() < super::MOST_ASKED || labels.contains_key(&label);
        let Some(about) = about.filter(|_| may_ask) else {
            let message = HubMessage::Known { label, standing: Standing::Unknown, kept_s: 0 };
            actions.push(HubAction::Tell { to: asks, message });
            return actions;
        };
        labels.insert(label, about);
        let kept_ns = u64::from(pace::kept_s(keep_s)) * SECOND_NS;
        let until_ns = now_ns.saturating_add(kept_ns);
        let pair = AskedPair { about, asks };
        let before = self.interests.get(&pair).map(|interest| interest.label);
        if let Some(before) = before.filter(|before| *before != label) {
            labels.remove(&before);
        }
        let interest = self.interests.entry(pair).or_insert_with(|| Interest::new(label));
        self.ends.remove(&(interest.until_ns, pair));
        self.ends.insert((until_ns, pair));
        (interest.label, interest.until_ns) = (label, until_ns);
        if before != Some(label) {
            actions.push(HubAction::Label { to: asks, from: about, label: Some(label) });
        }
        actions.extend(self.answer_question(pair, now_ns));
        actions.extend(self.tell_standing(about, asks, now_ns));
        actions
    }

    /// A label is for another peer now, or for none.
    fn remove_label(
        &mut self,
        asks: PeerSlot,
        label: Label,
        about: Option<PeerSlot>,
        now_ns: u64,
    ) -> Vec<HubAction> {
        let Some(labels) = self.asked.get_mut(&asks) else { return Vec::new() };
        let Some(before) = labels.get(&label).copied().filter(|now| Some(*now) != about) else {
            return Vec::new();
        };
        labels.remove(&label);
        self.remove_interest(AskedPair { about: before, asks });
        let mut actions = vec![HubAction::Label { to: asks, from: before, label: None }];
        actions.extend(self.tell_standing(before, asks, now_ns));
        actions
    }

    /// The peer that another calls by this label.
    pub fn find_labelled(&self, asks: PeerSlot, label: Label) -> Option<PeerSlot> {
        self.asked.get(&asks)?.get(&label).copied()
    }

    /// A piece of `from`, for the peer that has this label there; `None`: it is not passed on.
    pub fn pass_on(&mut self, from: PeerSlot, piece: Piece, now_ns: u64) -> Option<PassedOn> {
        let to = self.find_labelled(from, piece.label)?;
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
        let mut actions = Vec::new();
        let is_over = self.end_those_over(&mut actions, now_ns);
        self.tell_late(&mut actions, now_ns);
        let is_over = self.repeat_changes(&mut actions, now_ns) && is_over && self.late.is_empty();
        let wait_ns = if is_over { SECOND_NS } else { SOON_NS };
        self.look_ns = now_ns.saturating_add(wait_ns);
        actions
    }

    /// When [`tick`](Self::tick) is due.
    pub fn deadline_ns(&self) -> u64 {
        if self.interests.is_empty() { u64::MAX } else { self.look_ns }
    }

    /// Forgets those who ask no more; `false`: there are others.
    fn end_those_over(&mut self, actions: &mut Vec<HubAction>, now_ns: u64) -> bool {
        for _ in 0..LOOKS {
            let first = self.ends.first().filter(|(until_ns, _)| now_ns >= *until_ns);
            let Some(&(_, pair)) = first else { return true };
            self.count_look();
            actions.extend(self.end_interest(pair));
            actions.extend(self.tell_standing(pair.about, pair.asks, now_ns));
        }
        false
    }

    /// Tells peers the changes once more that they were told a while ago. Returns `false` if some
    /// are left for the next look.
    fn repeat_changes(&mut self, actions: &mut Vec<HubAction>, now_ns: u64) -> bool {
        for _ in 0..LOOKS {
            let first = self.repeats.first().filter(|(repeat_ns, _)| now_ns >= *repeat_ns);
            let Some(&(_, pair)) = first else { return true };
            self.count_look();
            let all = &self.received.entry(pair.asks).or_default().changes;
            if all.take(ALL_CHANGES, now_ns) {
                self.set_repeat(pair, None);
                actions.extend(self.answer_question(pair, now_ns));
            } else {
                self.set_repeat(pair, Some(now_ns.saturating_add(REPEAT_NS)));
            }
        }
        false
    }

    fn set_repeat(&mut self, pair: AskedPair, repeat_ns: Option<u64>) {
        let Some(interest) = self.interests.get_mut(&pair) else { return };
        if let Some(before_ns) = std::mem::replace(&mut interest.repeat_ns, repeat_ns) {
            self.repeats.remove(&(before_ns, pair));
        }
        self.repeats.extend(repeat_ns.map(|repeat_ns| (repeat_ns, pair)));
    }

    /// Tells what could not be told before, once round all that were not told at the most.
    fn tell_late(&mut self, actions: &mut Vec<HubAction>, now_ns: u64) {
        let (begin, last_turn) = (self.next_asks, self.next_turn);
        let mut left = LOOKS;
        for (first, end) in [(begin, None), (PeerSlot::FIRST, Some(begin))] {
            let mut next = Some(first);
            while let Some(asks) = next.and_then(|next| self.late_asker(next, end)) {
                if left == 0 {
                    self.next_asks = asks;
                    return;
                }
                left = self.tell_late_to(asks, last_turn, left, actions, now_ns);
                next = asks.next();
            }
        }
    }

    /// The first peer from `first` on, and before `end` if there is one, that was not told of
    /// something.
    fn late_asker(&self, first: PeerSlot, end: Option<PeerSlot>) -> Option<PeerSlot> {
        let (late, _) = self.late.range(LateTurn { asks: first, turn: 0 }..).next()?;
        end.is_none_or(|end| late.asks < end).then_some(late.asks)
    }

    /// Tells one peer what it was not told before `last_turn`, as far as it may be told. Returns
    /// what is left of `left` looks.
    fn tell_late_to(
        &mut self,
        asks: PeerSlot,
        last_turn: u64,
        mut left: usize,
        actions: &mut Vec<HubAction>,
        now_ns: u64,
    ) -> usize {
        let line = LateTurn { asks, turn: 0 }..LateTurn { asks, turn: last_turn };
        while left > 0
            && let Some((&late, &about)) = self.late.range(line.clone()).next()
        {
            left -= 1;
            self.count_look();
            let all = &self.received.entry(asks).or_default().changes;
            if !all.allows(ALL_CHANGES, now_ns) {
                break;
            }
            // If it may not be told of this one yet, it is last in the line.
            self.late.remove(&late);
            let pair = AskedPair { about, asks };
            if let Some(interest) = self.interests.get_mut(&pair) {
                interest.late = None;
            }
            actions.extend(self.tell_change(pair, now_ns));
        }
        left
    }

    fn count_look(&mut self) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
    }

    /// Tells all who ask for a peer.
    fn tell_of(&mut self, about: PeerSlot, now_ns: u64) -> Vec<HubAction> {
        let all =
            AskedPair { about, asks: PeerSlot::FIRST }..=AskedPair { about, asks: PeerSlot::LAST };
        let askers: Vec<_> = self.interests.range(all).map(|(pair, _)| pair.asks).collect();
        askers.into_iter().filter_map(|asks| self.tell_standing(asks, about, now_ns)).collect()
    }

    /// Tells a peer the standing of another at once, unless others wait in its line.
    fn tell_standing(&mut self, asks: PeerSlot, about: PeerSlot, now_ns: u64) -> Option<HubAction> {
        let pair = AskedPair { about, asks };
        if self.late_asker(asks, asks.next()).is_none() {
            return self.tell_change(pair, now_ns);
        }
        if self.interests.get(&pair)?.told != Some(self.standing_for(pair)) {
            self.note_late(pair);
        }
        None
    }

    /// Tells a peer the standing of another, if it was told another one last, and not too often.
    fn tell_change(&mut self, pair: AskedPair, now_ns: u64) -> Option<HubAction> {
        let standing = self.standing_for(pair);
        let interest = self.interests.get(&pair)?;
        if interest.told == Some(standing) {
            return None;
        }
        let all = &self.received.entry(pair.asks).or_default().changes;
        let is_told = all.allows(ALL_CHANGES, now_ns)
            && interest.changes.take(CHANGES, now_ns)
            && all.take(ALL_CHANGES, now_ns);
        if is_told {
            self.set_repeat(pair, Some(now_ns.saturating_add(REPEAT_NS)));
            return self.answer_question(pair, now_ns);
        }
        self.note_late(pair);
        None
    }

    /// A peer could not be told of a change: it is last in its line, if it is not in it.
    fn note_late(&mut self, pair: AskedPair) {
        let Some(interest) = self.interests.get_mut(&pair) else { return };
        if interest.late.is_none() {
            let turn = self.next_turn;
            self.next_turn += 1;
            interest.late = Some(turn);
            self.late.insert(LateTurn { asks: pair.asks, turn }, pair.about);
        }
    }

    /// Tells a peer the standing of another.
    fn answer_question(&mut self, pair: AskedPair, now_ns: u64) -> Option<HubAction> {
        let standing = self.standing_for(pair);
        let interest = self.interests.get_mut(&pair)?;
        interest.told = Some(standing);
        if let Some(turn) = interest.late.take() {
            self.late.remove(&LateTurn { asks: pair.asks, turn });
        }
        let kept_s = (interest.until_ns.saturating_sub(now_ns) / SECOND_NS) as u16;
        let message = HubMessage::Known { label: interest.label, standing, kept_s };
        Some(HubAction::Tell { to: pair.asks, message })
    }

    /// The standing of the peer that is asked for, for the one that asks.
    fn standing_for(&self, AskedPair { about, asks }: AskedPair) -> Standing {
        let asks_back = self.interests.contains_key(&AskedPair { about: asks, asks: about });
        match self.up.get(&about) {
            None => Standing::Down,
            Some(_) if !asks_back => Standing::Silent,
            Some(address) => Standing::Mutual(*address),
        }
    }
}
