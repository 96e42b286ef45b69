//! Direct paths between peers of a hub (`vsnoop_link::introduction`): what this host does as a hub,
//! and for the peers that it has behind one.
//!
//! Handshakes by way of a hub run on this thread: they never wait, and how many begin is bounded.

use std::collections::HashSet;

use tracing::debug;

use super::{ControlThread, PeerEntry};
use crate::causes::with_causes;
use crate::egress;
use crate::handshake::establish::{self, SessionRole};
use crate::threads::event::{ControlEvent, ReceivedMessage};
use vsnoop_link::forwarding::Location;
use vsnoop_link::handshake::{Answer, Hello, Machine, Outcome, Purpose, Refusal, RefusalKind};
use vsnoop_link::identity::PeerId;
use vsnoop_link::introduction::{
    About, AskPace, Contact, ContactAction, HubAction, HubMessage, Label, Piece, Question, Standing,
};
use vsnoop_link::session::{DialError, PeerEvent};
use vsnoop_link::slots::PeerSlot;
use vsnoop_link::wire::item::INTRODUCTION;

/// No reload has this number: a proof is looked at again.
const ANY_GENERATION: u64 = u64::MAX;

impl ControlThread {
    /// A peer has said something about a hub's peers.
    pub(super) fn handle_introduction(&mut self, got: &ReceivedMessage) {
        let (peer, now_ns) = (got.peer, self.shared.now_ns());
        if !self.peers[peer].installed.contains_key(&got.session) {
            // It was read before that session ended.
            return;
        }
        let is_relayed = self.peers[peer].config.relay && self.peers[peer].used.is_some();
        match HubMessage::decode(&got.item) {
            Some(HubMessage::Ask { label, about, keep_s }) if is_relayed => {
                self.handle_question(peer, label, &about, keep_s);
            }
            Some(HubMessage::ToPeer(piece)) if is_relayed => {
                if let Some(passed) = self.hub.pass_on(peer, piece, now_ns) {
                    self.send_hub_message(passed.to, &passed.message);
                }
            }
            Some(HubMessage::Known { label, standing, kept_s }) => {
                if let Some(known) = self.shared.find_labelled(peer, label) {
                    self.handle_standing(known, standing, kept_s);
                }
            }
            Some(HubMessage::FromPeer(piece)) => {
                if let Some(known) = self.shared.find_labelled(peer, piece.label) {
                    self.handle_piece(known, &piece);
                }
            }
            _ => {}
        }
    }

    /// A peer asks for another, which it calls by this label.
    fn handle_question(&mut self, peer: PeerSlot, label: Label, about: &About, keep_s: u16) {
        let now_ns = self.shared.now_ns();
        if !self.hub.takes_question(peer, now_ns) {
            return;
        }
        let about = self.find_relayed(peer, label, about);
        let question = Question { label, about, keep_s };
        let actions = self.hub.handle_question(peer, question, now_ns);
        self.act_as_hub(actions);
    }

    /// The peer that is relayed, and is whom another asks for by this label: most likely, the one
    /// that it has asked for before.
    fn find_relayed(&self, asks: PeerSlot, label: Label, about: &About) -> Option<PeerSlot> {
        let is_relayed =
            |known: &PeerEntry| !known.is_removed && known.config.relay && known.is_about(about);
        let before = self.hub.find_labelled(asks, label);
        let before = before.filter(|before| self.peers.get(*before).is_some_and(is_relayed));
        before.or_else(|| self.peers.position(is_relayed))
    }

    /// A session with a peer came into use, or its datagrams come from elsewhere.
    pub(super) fn note_up(&mut self, peer: PeerSlot) {
        let known = &mut self.peers[peer];
        let Some(installed) = known.used.and_then(|used| known.installed.get(&used)) else {
            return;
        };
        let (address, instance) = (installed.address, installed.instance);
        let is_other = known.instance.replace(instance).is_some_and(|before| before != instance);
        if known.config.relay {
            let now_ns = self.shared.now_ns();
            let mut actions = if is_other { self.hub.note_down(peer, now_ns) } else { Vec::new() };
            actions.extend(self.hub.note_up(peer, address, now_ns));
            self.act_as_hub(actions);
        }
    }

    /// The peers behind this one are asked for, one after another: all of them if the hub has
    /// another session with this host (`is_anew`), else those that it was not asked for.
    pub(super) fn ask_behind(&mut self, hub: PeerSlot, is_anew: bool) {
        let now_ns = self.shared.now_ns();
        let behind = self.behind_by_traffic(hub);
        let pace = AskPace::new(behind.len());
        let mut turn = 0;
        for peer in behind {
            let Some(contact) = self.peers.get_mut(peer).and_then(|known| known.contact.as_mut())
            else {
                continue;
            };
            if is_anew || !contact.hub_is_up() {
                contact.hub_up(turn, pace, now_ns);
                turn += 1;
            } else {
                contact.set_pace(pace);
            }
            self.deadlines.set(peer, self.peers[peer].deadline_ns());
        }
    }

    /// The peers behind a hub, those first that VMs have sent from.
    fn behind_by_traffic(&self, hub: PeerSlot) -> Vec<PeerSlot> {
        let mut behind: Vec<_> = self.shared.peers_behind(hub).collect();
        if behind.len() > 1 {
            let table = self.shared.table.read();
            let learned = table.entries(self.shared.now_ns()).map(|entry| entry.location);
            let learned: HashSet<_> = learned.collect();
            behind.sort_by_key(|peer| !learned.contains(&Location::Peer(*peer)));
        }
        behind
    }

    /// A peer is not behind this hub any more.
    pub(super) fn ask_no_more(&self, hub: Option<&String>, contact: Contact) {
        let is_hub = |known: &PeerEntry| !known.is_removed && Some(&known.config.name) == hub;
        if let Some(hub) = self.peers.position(is_hub) {
            self.send_hub_message(hub, &contact.ask_no_more());
        }
    }

    /// There is no session with a peer any more.
    pub(super) fn note_down(&mut self, peer: PeerSlot) {
        let actions = self.hub.note_down(peer, self.shared.now_ns());
        self.act_as_hub(actions);
        let behind: Vec<_> = self.shared.peers_behind(peer).collect();
        for peer in behind {
            if let Some(contact) = self.peers.get_mut(peer).and_then(|known| known.contact.as_mut())
            {
                contact.hub_down();
            }
            self.note_labels(peer);
        }
    }

    /// Tells the table whether the hub of a peer labels the peer's frames.
    fn note_labels(&self, peer: PeerSlot) {
        let known = self.peers.get(peer);
        let Some(contact) = known.and_then(|known| known.contact.as_ref()) else { return };
        let (location, table) = (Location::Peer(peer), &self.shared.table);
        let is_labelled = contact.is_labelled(self.shared.now_ns());
        if table.read().is_labelled(location) != is_labelled {
            table.write().set_labelled(location, is_labelled);
        }
    }

    /// Lets time pass for a peer behind a hub.
    pub(super) fn tick_contact(&mut self, peer: PeerSlot) {
        let now_ns = self.shared.now_ns();
        if let Some(contact) = &mut self.peers[peer].contact {
            let actions = contact.tick(now_ns);
            self.note_labels(peer);
            self.act_for_contact(peer, actions);
        }
    }

    pub(super) fn act_as_hub(&mut self, actions: Vec<HubAction>) {
        for action in actions {
            match action {
                HubAction::Tell { to, message } => self.send_hub_message(to, &message),
                HubAction::Label { to: peer, from, label } => {
                    self.orders.order_egress(peer, egress::Order::Label { peer, from, label });
                }
            }
        }
    }

    /// Calls a peer behind a hub.
    pub(super) fn dial_by_hub(&mut self, peer: PeerSlot, epoch: u32) {
        let hello = self.build_hello(peer, epoch);
        let now_ns = self.shared.now_ns();
        let known = &mut self.peers[peer];
        let begun = match &mut known.contact {
            Some(contact) if contact.address().is_some() => Machine::dial(&known.initiator, hello)
                .map(|machine| contact.dial(machine, now_ns))
                .map_err(|error| error.what().to_string()),
            contact => Err(why_not(contact.as_ref().and_then(|contact| contact.standing()))),
        };
        if let Err(reason) = begun {
            let result = Err(DialError { reason, answered: false });
            let (serial, generation) = (known.serial, self.reloads);
            self.events.send(ControlEvent::Dialled { peer, serial, generation, result });
            return;
        }
        self.tick_contact(peer);
    }

    /// A hub has said what it knows of a peer behind it.
    fn handle_standing(&mut self, peer: PeerSlot, standing: Standing, kept_s: u16) {
        let now_ns = self.shared.now_ns();
        if let Some(contact) = &mut self.peers[peer].contact {
            let actions = contact.note_standing(standing, kept_s, now_ns);
            self.note_labels(peer);
            let is_apart = matches!(standing, Standing::Unknown | Standing::Down);
            self.orders.each_egress(|| egress::Order::Apart { peer, is_apart });
            self.act_for_contact(peer, actions);
        }
    }

    /// A piece of a handshake with a peer behind a hub.
    fn handle_piece(&mut self, peer: PeerSlot, piece: &Piece) {
        let (now_ns, accept) = (self.shared.now_ns(), self.listener.config());
        let known = &mut self.peers[peer];
        let Some(contact) = &mut known.contact else { return };
        let name = &known.config.name;
        let policy = |who: &PeerId, theirs: &Hello| {
            if who.as_str() == name && theirs.purpose == Purpose::Control {
                accept.answer_hello(who, theirs)
            } else {
                let reason = "the hub has passed on a handshake of another peer";
                Answer::Refuse(Refusal::new(RefusalKind::Other, reason))
            }
        };
        let actions = contact.handle_piece(piece, &accept.acceptor, &policy, now_ns);
        self.act_for_contact(peer, actions);
    }

    fn act_for_contact(&mut self, peer: PeerSlot, actions: Vec<ContactAction>) {
        for action in actions {
            match action {
                ContactAction::Send(message) => {
                    if let Some(hub) = self.shared.hub_of(peer) {
                        self.send_hub_message(hub, &message);
                    }
                }
                ContactAction::Found(address) => self.tell_peer(peer, PeerEvent::Found(address)),
                ContactAction::Dialled(Ok(outcome)) => self.handle_dialled_by_hub(peer, &outcome),
                ContactAction::Dialled(Err(error)) => {
                    let (reason, answered) = (error.what().to_string(), error.proved());
                    let error = DialError { reason, answered };
                    self.tell_peer(peer, PeerEvent::Dialled(Err(error)));
                }
                ContactAction::Accepted(Ok(outcome)) => self.handle_called_by_hub(peer, &outcome),
                ContactAction::Accepted(Err(error)) => {
                    debug!("by way of its hub: {error}");
                }
            }
        }
        let deadline_ns = self.peers[peer].deadline_ns();
        self.deadlines.set(peer, deadline_ns);
    }

    fn handle_dialled_by_hub(&mut self, peer: PeerSlot, outcome: &Outcome) {
        let result = self.make_introduced(peer, outcome, SessionRole::DialledByHub);
        let result = result.map_err(|reason| DialError { reason, answered: true });
        self.handle_dialled(peer, ANY_GENERATION, result);
    }

    fn handle_called_by_hub(&mut self, peer: PeerSlot, outcome: &Outcome) {
        match self.make_introduced(peer, outcome, SessionRole::CalledByHub) {
            Ok(mut made) => {
                if self.is_still_trusted(peer, ANY_GENERATION, &mut made.proof) {
                    self.take_in(peer, made);
                }
            }
            Err(reason) => debug!("peer {}: {reason}", self.peers[peer].config.name),
        }
    }

    /// The session of a handshake. Its datagrams go where those of the session in use do, or where
    /// the hub says.
    fn make_introduced(
        &self,
        peer: PeerSlot,
        outcome: &Outcome,
        role: SessionRole,
    ) -> Result<Box<establish::Made>, String> {
        let known = &self.peers[peer];
        let used = known.used.and_then(|used| known.installed.get(&used));
        let address = used.map(|installed| installed.address);
        let address = address.or_else(|| known.contact.as_ref()?.address());
        let address = address.ok_or_else(|| why_not(None))?;
        let made = establish::make_datagram_session(outcome, address, role);
        made.map(Box::new).map_err(|error| with_causes(&error))
    }

    /// Says something to a peer under its session, if there is one.
    fn send_hub_message(&self, peer: PeerSlot, message: &HubMessage) {
        let Some(session) = self.peers.get(peer).and_then(|known| known.used) else {
            return;
        };
        let item = [&[INTRODUCTION][..], &message.encode()].concat();
        let order = egress::Order::Message { peer, session, item, pad_to: 0, to: None };
        self.orders.order_egress(peer, order);
    }
}

/// Why a peer behind a hub cannot be called.
fn why_not(standing: Option<Standing>) -> String {
    match standing {
        None => "the hub does not say where it is: is the hub up, and does it know `via`?",
        Some(Standing::Unknown) => "the hub does not relay for it",
        Some(Standing::Down) => "it is not connected to the hub",
        Some(Standing::Silent) => "it does not ask the hub for this host: has it `via` there?",
        Some(Standing::Mutual(_)) => "the hub tells an address of no host",
    }
    .to_owned()
}
