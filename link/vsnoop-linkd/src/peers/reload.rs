//! Peers that are added, changed and removed while the link runs.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::info;

use super::ControlThread;
use super::accept::ListenerConfig;
use super::peer_entry::{NewPeer, PeerEntry, is_favoured, make_contact, make_settings};
use crate::config::{Address, Config, PeerConfig};
use crate::egress;
use crate::threads::shared::Shared;
use crate::threads::slots::Slots;
use vsnoop_link::compress::DecoderMemory;
use vsnoop_link::forwarding::Location;
use vsnoop_link::identity::{Acceptor, Initiator, Proof, PublicKey};
use vsnoop_link::introduction::Contact;
use vsnoop_link::session::{DialError, PeerEvent, SessionId};
use vsnoop_link::slots::PeerSlot;

/// The peers of a new configuration.
pub struct NewPeers<'a> {
    pub config: &'a Config,
    pub slots: &'a Slots<PeerSlot>,
    pub acceptor: Acceptor,
    /// In the order of the configuration.
    pub initiators: Vec<Initiator>,
    pub ours: PublicKey,
    /// This host shows another key or certificate than before.
    pub is_shown_anew: bool,
}

impl ControlThread {
    /// Ends the sessions of peers that are not in the new configuration, or that cannot go on as
    /// they are. The data threads have retired them before they get the new [`Shared`].
    pub fn leave_peers(&mut self, config: &Config) {
        for peer in self.peers.slots() {
            let known = &self.peers[peer];
            if known.is_removed {
                continue;
            }
            let new = config.peers.iter().find(|new| new.name == known.config.name);
            let stays = new.is_some_and(|new| new.transport == known.config.transport);
            if stays {
                continue;
            }
            info!("peer {}: its session ends, by the new configuration", known.config.name);
            self.tell_peer(peer, PeerEvent::Close);
            let actions = self.hub.remove_peer(peer, self.shared.now_ns());
            self.act_as_hub(actions);
            let known = &mut self.peers[peer];
            known.is_removed = true;
            let (via, contact) = (known.config.via.clone(), known.contact.take());
            known.made.clear();
            known.incomplete.clear();
            if let Some(contact) = contact {
                self.ask_no_more(via.as_ref(), contact);
            }
            self.shared.table.write().forget_location(Location::Peer(peer));
            self.guard.set_peer(peer, []);
        }
    }

    /// Goes on with these peers. Those that stay as they are notice nothing.
    pub fn reload(&mut self, shared: Arc<Shared>, new: NewPeers<'_>) {
        let NewPeers { config, slots, acceptor, initiators, ours, is_shown_anew } = new;
        self.reloads += 1;
        self.shared = shared;
        self.ours = ours;
        (self.clamp_mss, self.gso) = (config.clamp_mss, config.gso);
        self.layer_2.set_policy(config.loops);
        if self.dead_after != config.dead_after {
            self.dead_after = config.dead_after;
            self.orders.each_egress(|| egress::Order::DeadAfter(config.dead_after));
        }
        self.listener.set_config(ListenerConfig {
            introduction: self.introduction.clone(),
            acceptor,
            peers: config.peers.clone(),
            slots: slots.clone(),
            pairs: self.shared.pairs,
            generation: self.reloads,
        });
        for (peer, initiator) in config.peers.iter().zip(initiators) {
            let Some(slot) = slots.find(&peer.name) else { continue };
            match self.peers.get(slot) {
                Some(known) if !known.is_removed => {
                    self.change_peer(slot, peer, config, initiator, is_shown_anew);
                }
                _ => self.add_peer(slot, peer, config, initiator),
            }
        }
        self.peers.slots().for_each(|peer| self.bound_frames(peer));
        // Some peers may be behind another hub than before.
        for hub in self.peers.slots() {
            if self.is_up(hub) {
                self.ask_behind(hub, false);
            }
        }
    }

    fn add_peer(
        &mut self,
        slot: PeerSlot,
        peer: &PeerConfig,
        config: &Config,
        initiator: Initiator,
    ) {
        let (serial, now_ns) = (self.next_serial, self.shared.now_ns());
        self.next_serial += 1;
        let pairs = self.shared.pairs;
        let new = NewPeer { slot, serial, initiator, ours: self.ours, pairs };
        let entry = PeerEntry::new(peer, config, new, now_ns);
        self.guard.set_peer(slot, peer.addresses.iter().filter_map(Address::literal));
        match self.peers.get_mut(slot) {
            Some(known) => *known = entry,
            // Numbers have no gaps.
            None => self.peers.push(entry),
        }
        info!("peer {}: configured", peer.name);
        self.tell_peer(slot, PeerEvent::Tick);
    }

    fn change_peer(
        &mut self,
        slot: PeerSlot,
        peer: &PeerConfig,
        config: &Config,
        initiator: Initiator,
        is_shown_anew: bool,
    ) {
        let (ours, pairs) = (self.ours, self.shared.pairs);
        let known = &mut self.peers[slot];
        known.initiator = Arc::new(initiator);
        let is_favoured = is_favoured(&peer.trust, known.shown_key, ours);
        let settings = make_settings(peer, config, is_favoured);
        let is_other = settings != known.settings;
        known.settings = settings.clone();
        let before = std::mem::replace(&mut known.config, peer.clone());
        let (mut was_dialling, mut gone) = (false, None);
        if (&before.via, &before.trust) != (&peer.via, &peer.trust) {
            let old = std::mem::replace(&mut known.contact, make_contact(peer, slot, pairs));
            was_dialling = old.as_ref().is_some_and(Contact::is_dialling);
            gone = old;
        }
        if before.addresses != peer.addresses {
            self.guard.set_peer(slot, peer.addresses.iter().filter_map(Address::literal));
        }
        let dictionary_bytes = config.compress.largest_dictionary(&peer.name);
        known.dictionary_bytes = dictionary_bytes;
        // They are agreed on in a handshake.
        let is_agreed_anew = (before.accept, before.connections, before.outer)
            != (peer.accept, peer.connections, peer.outer);
        if is_agreed_anew {
            known.memory = Arc::new(DecoderMemory::new(peer.decoder_bytes_max()));
        }
        if let Some(contact) = gone {
            self.ask_no_more(before.via.as_ref(), contact);
        }
        if was_dialling {
            let reason = "the configuration has changed meanwhile".into();
            let error = DialError { reason, answered: false };
            self.tell_peer(slot, PeerEvent::Dialled(Err(error)));
        }
        if before.relay && !peer.relay {
            let actions = self.hub.remove_peer(slot, self.shared.now_ns());
            self.act_as_hub(actions);
        }
        if peer.relay && !before.relay {
            self.note_up(slot);
        }
        if is_other {
            self.tell_peer(slot, PeerEvent::Configured(settings));
        }
        self.verify_again(slot);
        if is_agreed_anew || is_shown_anew {
            self.tell_peer(slot, PeerEvent::Renew);
        }
    }

    /// Ends the sessions of a peer whose proof of identity is no longer valid.
    fn verify_again(&mut self, slot: PeerSlot) {
        let known = &mut self.peers[slot];
        let mut ended = Vec::new();
        for (id, session) in &mut known.installed {
            if let Err(error) = known.initiator.verify_again(&mut session.proof) {
                ended.push((*id, format!("it is not trusted any more: it {error}")));
            }
        }
        let initiator = &known.initiator;
        known
            .incomplete
            .retain_mut(|begun| initiator.verify_again(&mut begun.control.outcome.proof).is_ok());
        self.end_sessions(slot, ended);
    }

    /// Is the proof of a handshake still valid? `generation`: number of reloads when it began.
    pub(super) fn is_still_trusted(
        &self,
        slot: PeerSlot,
        generation: u64,
        proof: &mut Proof,
    ) -> bool {
        generation == self.reloads || self.peers[slot].initiator.verify_again(proof).is_ok()
    }

    /// Ends the sessions whose proof has come to its end.
    pub(super) fn end_proofs(&mut self, slot: PeerSlot) {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let sessions = self.peers[slot].installed.iter();
        let over = sessions
            .filter(|(_, session)| session.proof.until_s().is_some_and(|until_s| now_s > until_s));
        let over = over.map(|(id, _)| (*id, "its certificate has expired".to_owned())).collect();
        self.end_sessions(slot, over);
    }

    fn end_sessions(&mut self, slot: PeerSlot, ended: Vec<(SessionId, String)>) {
        for (session, reason) in ended {
            self.tell_peer(slot, PeerEvent::Expired { session, reason });
        }
    }
}
