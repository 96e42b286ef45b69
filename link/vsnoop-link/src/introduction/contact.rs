//! A peer behind a hub, as a host knows it.
//!
//! The host asks the hub for the peer until the hub answers, and then again and again, so that the
//! hub does not forget the question ([`AskPace`]). A handshake begins at either end; at each end at
//! most one that this end has begun, and one that the peer has begun, are under way. How often the
//! peer may begin one is bounded: its first piece costs this host a key exchange.

use std::net::SocketAddr;

use super::exchange::{AnswerPolicy, Exchange};
use super::message::{About, HubMessage, LEAST_KEPT_S, Label, Piece, SECOND_NS, Standing};
use super::pace::AskPace;
use crate::handshake::{Error, Machine, Outcome};
use crate::identity::Acceptor;
use crate::rate::{Rate, RateLimit};
use crate::session::is_of_another_host;

/// Between the questions for several peers, once their hub is up.
const ASK_APART_NS: u64 = SECOND_NS / super::ASKS_PER_S;
/// Handshakes of the peer.
const BEGUN: RateLimit = RateLimit { each_ns: 2 * SECOND_NS, burst: 4 };

/// The part of a contact that does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContactSettings {
    pub label: Label,
    pub about: About,
}

/// An action of the caller.
#[derive(Debug)]
pub enum ContactAction {
    /// To the hub.
    Send(HubMessage),
    /// The handshake that this end has begun is over.
    Dialled(Result<Box<Outcome>, Error>),
    /// A handshake of the peer is over.
    Accepted(Result<Box<Outcome>, Error>),
    /// The hub tells an address of the peer that it has not told before.
    Found(SocketAddr),
}

#[derive(Debug)]
pub struct Contact {
    settings: ContactSettings,
    /// The hub has a session with this host.
    hub_is_up: bool,
    pace: AskPace,
    ask_ns: u64,
    /// Questions since the hub has answered that it has such a peer.
    tries: u32,
    /// The hub's answer since it is up.
    standing: Option<Standing>,
    /// The hub remembers the question until then.
    kept_until_ns: u64,
    /// The last address that it has told.
    found: Option<SocketAddr>,
    dialled: Option<Exchange>,
    accepted: Option<Exchange>,
    /// Handshakes that the peer has begun.
    begun: Rate,
}

impl Contact {
    pub fn new(settings: ContactSettings) -> Self {
        Self {
            settings,
            hub_is_up: false,
            pace: AskPace::new(1),
            ask_ns: 0,
            tries: 0,
            standing: None,
            kept_until_ns: 0,
            found: None,
            dialled: None,
            accepted: None,
            begun: Rate::default(),
        }
    }

    pub fn settings(&self) -> &ContactSettings {
        &self.settings
    }

    /// The state of the peer as the hub says it; `None` while the hub says nothing.
    pub fn standing(&self) -> Option<Standing> {
        self.standing.filter(|_| self.hub_is_up)
    }

    /// The hub relays what this host and the peer send each other.
    pub fn is_relayed(&self) -> bool {
        matches!(self.standing(), Some(Standing::Silent | Standing::Mutual(_)))
    }

    /// The hub labels frames of the peer that it relays: it has answered a question for the peer,
    /// and has not forgotten it since.
    pub fn is_labelled(&self, now_ns: u64) -> bool {
        self.standing().is_some_and(|standing| standing != Standing::Unknown)
            && now_ns < self.kept_until_ns
    }

    /// A handshake that this end has begun is under way.
    pub fn is_dialling(&self) -> bool {
        self.dialled.as_ref().is_some_and(Exchange::is_under_way)
    }

    /// Where the peer may be; `None` while it cannot be called.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.standing() {
            Some(Standing::Mutual(address)) if is_callable(address) => Some(address),
            _ => None,
        }
    }

    /// The hub has a session with this host now, or another one. `turn`: the number of peers behind
    /// it that are asked for before this one.
    pub fn hub_up(&mut self, turn: usize, pace: AskPace, now_ns: u64) {
        (self.hub_is_up, self.pace, self.tries) = (true, pace, 0);
        self.ask_ns = now_ns.saturating_add(ASK_APART_NS.saturating_mul(turn as u64));
        // It may have forgotten the question.
        let least_ns = u64::from(LEAST_KEPT_S) * SECOND_NS;
        self.kept_until_ns = self.kept_until_ns.min(now_ns.saturating_add(least_ns));
    }

    pub fn hub_is_up(&self) -> bool {
        self.hub_is_up
    }

    /// The number of peers behind the hub has changed.
    pub fn set_pace(&mut self, pace: AskPace) {
        self.pace = pace;
    }

    /// The message that takes the question back.
    pub fn ask_no_more(self) -> HubMessage {
        let ContactSettings { label, about } = self.settings;
        HubMessage::Ask { label, about, keep_s: 0 }
    }

    pub fn hub_down(&mut self) {
        (self.hub_is_up, self.standing) = (false, None);
    }

    /// Begins a handshake with the peer. [`ContactAction::Dialled`] follows.
    pub fn dial(&mut self, machine: Machine, now_ns: u64) {
        self.dialled = Some(Exchange::new(fastrand::u32(..), true, machine, now_ns));
    }

    /// The hub has answered, and remembers the question for `kept_s` seconds.
    pub fn note_standing(
        &mut self,
        standing: Standing,
        kept_s: u16,
        now_ns: u64,
    ) -> Vec<ContactAction> {
        self.standing = Some(standing);
        self.kept_until_ns = now_ns.saturating_add(u64::from(kept_s) * SECOND_NS);
        if standing == Standing::Unknown {
            // It tells of no change of such a peer: it is asked as without an answer.
            if self.tries == 0 {
                (self.tries, self.ask_ns) = (1, now_ns.saturating_add(self.pace.retry_ns(1)));
            }
        } else if std::mem::take(&mut self.tries) > 0 {
            self.ask_ns = now_ns.saturating_add(self.pace.settled_ns(kept_s));
        }
        let found = self.address().filter(|address| self.found != Some(*address));
        self.found = found.or(self.found);
        found.map(ContactAction::Found).into_iter().collect()
    }

    /// Takes a piece of a handshake. `acceptor` and `policy` are for one that the peer has begun.
    pub fn handle_piece(
        &mut self,
        piece: &Piece,
        acceptor: &Acceptor,
        policy: AnswerPolicy<'_>,
        now_ns: u64,
    ) -> Vec<ContactAction> {
        let mut actions = Vec::new();
        if piece.from_initiator {
            self.begin_exchange(piece, acceptor, now_ns);
            let accepted = self.accepted.as_mut().filter(|known| known.id() == piece.exchange);
            let result =
                accepted.and_then(|exchange| exchange.receive_piece(piece, policy, now_ns));
            actions.extend(result.map(|done| ContactAction::Accepted(done.map(Box::new))));
        } else {
            let dialled = self.dialled.as_mut().filter(|known| known.id() == piece.exchange);
            let result = dialled.and_then(|exchange| exchange.receive_piece(piece, policy, now_ns));
            actions.extend(result.map(|done| ContactAction::Dialled(done.map(Box::new))));
        }
        self.send_due(&mut actions, now_ns);
        actions
    }

    /// A first piece begins another handshake, in the place of the one before.
    fn begin_exchange(&mut self, piece: &Piece, acceptor: &Acceptor, now_ns: u64) {
        let is_known = self.accepted.as_ref().is_some_and(|known| known.id() == piece.exchange);
        if is_known || piece.offset != 0 || piece.bytes.is_empty() {
            return;
        }
        if !self.begun.take(BEGUN, now_ns) {
            return;
        }
        if let Ok(machine) = Machine::accept(acceptor) {
            self.accepted = Some(Exchange::new(piece.exchange, false, machine, now_ns));
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now_ns: u64) -> Vec<ContactAction> {
        let mut actions = Vec::new();
        if self.hub_is_up && now_ns >= self.ask_ns {
            let ContactSettings { label, about } = self.settings.clone();
            let keep_s = self.pace.keep_s();
            actions.push(ContactAction::Send(HubMessage::Ask { label, about, keep_s }));
            self.tries = self.tries.saturating_add(1);
            self.ask_ns = now_ns.saturating_add(self.pace.retry_ns(self.tries));
        }
        self.send_due(&mut actions, now_ns);
        let is_over = |exchange: &mut Exchange| now_ns >= exchange.ends_ns();
        if let Some(mut exchange) = self.dialled.take_if(is_over) {
            let error = exchange.timed_out();
            actions.extend(error.map(|error| ContactAction::Dialled(Err(error))));
        }
        if let Some(mut exchange) = self.accepted.take_if(is_over) {
            let error = exchange.timed_out();
            actions.extend(error.map(|error| ContactAction::Accepted(Err(error))));
        }
        actions
    }

    /// When [`tick`](Self::tick) is due.
    pub fn deadline_ns(&self) -> u64 {
        let exchanges = self.dialled.iter().chain(&self.accepted).map(Exchange::deadline_ns);
        let ask_ns = if self.hub_is_up { self.ask_ns } else { u64::MAX };
        exchanges.fold(ask_ns, u64::min)
    }

    fn send_due(&mut self, actions: &mut Vec<ContactAction>, now_ns: u64) {
        let label = self.settings.label;
        for exchange in self.dialled.iter_mut().chain(&mut self.accepted) {
            let pieces = exchange.take_due(label, now_ns).into_iter();
            actions.extend(pieces.map(|piece| ContactAction::Send(HubMessage::ToPeer(piece))));
        }
    }
}

/// Whether a hub may have this host send datagrams there: not to itself, and to one host only.
fn is_callable(address: SocketAddr) -> bool {
    is_of_another_host(address.ip()) && address.port() != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = SECOND_NS;

    #[test]
    fn a_hub_that_does_not_answer_any_more_is_not_believed_to_label() {
        let label = Label::new(7).unwrap();
        let about = About::Subject("a.example".to_owned());
        let mut contact = Contact::new(ContactSettings { label, about });
        contact.hub_up(0, AskPace::new(1), 0);
        assert!(!contact.is_labelled(0), "it was not asked");
        for second in (0..=60).step_by(10) {
            contact.note_standing(Standing::Silent, 30, second * S);
            assert!(contact.is_labelled((second + 29) * S));
        }
        assert!(!contact.is_labelled(90 * S), "it may have forgotten the question");
        contact.note_standing(Standing::Unknown, 0, 90 * S);
        assert!(!contact.is_labelled(90 * S), "it does not relay for the peer any more");
        contact.note_standing(Standing::Down, 1500, 91 * S);
        assert!(contact.is_labelled(1590 * S));
        contact.hub_down();
        assert!(!contact.is_labelled(91 * S));
    }
}
