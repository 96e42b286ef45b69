//! Sessions as they begin: dialling, what callers have agreed on, and the orders that give a
//! session to the data threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::ControlThread;
use super::peer_entry::{Incomplete, Installed, other_mtu};
use crate::causes::with_causes;
use crate::config::{OuterConfig, PeerConfig};
use crate::egress::session_sender::SessionSender;
use crate::handshake::dial;
use crate::handshake::establish::{self, Incoming, Made, SessionRole};
use crate::handshake::tcp_handshake::Established;
use crate::threads::event::ControlEvent;
use crate::{egress, ingress};
use vsnoop_link::compress::CompressionLimits;
use vsnoop_link::handshake::{Hello, Purpose};
use vsnoop_link::identity::PeerId;
use vsnoop_link::session::{DialError, End, PeerEvent, SessionId, SessionInfo};
use vsnoop_link::slots::PeerSlot;
use vsnoop_link::wire::seal::TAG_BYTES;

/// Data connections that may wait for the control connection of their session; more are closed.
const STRAYS: usize = 64;
/// A session whose data connections are incomplete is closed after this time without a new one.
const CONNECTIONS_IN: Duration = Duration::from_secs(10);

impl ControlThread {
    /// Gives up sessions whose data connections do not come.
    pub(super) fn expire_incomplete(&mut self, peer: PeerSlot) {
        let incomplete = &mut self.peers[peer].incomplete;
        incomplete.retain(|session| session.since.elapsed() < CONNECTIONS_IN);
    }

    /// Forgets data connections whose session does not come.
    pub(super) fn expire_strays(&mut self) {
        self.strays.retain(|(since, _)| since.elapsed() < CONNECTIONS_IN);
    }

    /// Keeps a session until its machine has said what becomes of it.
    pub(super) fn keep_made(&mut self, peer: PeerSlot, made: Box<Made>) -> SessionInfo {
        let id = self.next_session;
        self.next_session = SessionId(id.0 + 1);
        let info = SessionInfo {
            id,
            initiator: if made.dialled { End::Us } else { End::Peer },
            epoch: made.epoch,
            instance: made.instance,
            address: made.address,
            introduced: made.introduced,
        };
        let known = &mut self.peers[peer];
        known.shown_key = Some(made.peer_key);
        let favoured = self.ours > made.peer_key;
        if known.settings.favoured != favoured {
            // The key of a peer with a subject is known from its handshake.
            known.settings.favoured = favoured;
            let settings = known.settings.clone();
            known.made.insert(id, made);
            self.tell_peer(peer, PeerEvent::Configured(settings));
        } else {
            known.made.insert(id, made);
        }
        info
    }

    pub(super) fn handle_accepted(
        &mut self,
        from: SocketAddr,
        generation: u64,
        mut established: Established,
    ) {
        let Some(peer) = self.find_peer(&established.outcome.peer) else { return };
        if !self.is_still_trusted(peer, generation, &mut established.outcome.proof) {
            return;
        }
        match established.outcome.theirs.purpose {
            Purpose::Control if establish::is_ordered(established.outcome.agreed.transport) => {
                let incomplete = Incomplete {
                    control: established,
                    from,
                    connections: Vec::new(),
                    since: Instant::now(),
                };
                let known = &mut self.peers[peer];
                // A peer that dials again has abandoned its earlier attempt.
                known.incomplete.clear();
                known.incomplete.push(incomplete);
                for (since, stray) in std::mem::take(&mut self.strays) {
                    self.add_connection(since, stray);
                }
            }
            Purpose::Control => {
                match establish::make_datagram_session(
                    &established.outcome,
                    from,
                    SessionRole::Called,
                ) {
                    Ok(made) => self.take_in(peer, Box::new(made)),
                    Err(error) => {
                        warn!("peer {}: {}", self.peers[peer].config.name, with_causes(&error));
                    }
                }
            }
            Purpose::Data { .. } => self.add_connection(Instant::now(), established),
        }
    }

    /// Adds a data connection to its session, or keeps it until the session is known.
    fn add_connection(&mut self, since: Instant, connection: Established) {
        let (Some(peer), Purpose::Data { session, .. }) =
            (self.find_peer(&connection.outcome.peer), connection.outcome.theirs.purpose)
        else {
            return;
        };
        let incomplete = &mut self.peers[peer].incomplete;
        let Some(at) =
            incomplete.iter().position(|waits| waits.control.outcome.ours.session == session)
        else {
            if self.strays.len() < STRAYS {
                self.strays.push((since, connection));
            }
            return;
        };
        incomplete[at].connections.push(connection);
        incomplete[at].since = Instant::now();
        let wanted = 2 * usize::from(incomplete[at].control.outcome.agreed.connections.max(1));
        if incomplete[at].connections.len() < wanted {
            return;
        }
        let Incomplete { control, from, connections, .. } = incomplete.swap_remove(at);
        let memory = &self.peers[peer].memory;
        match establish::make_ordered_session(control, connections, from, false, memory) {
            Ok(made) => self.take_in(peer, Box::new(made)),
            Err(error) => {
                warn!("peer {}: {}", self.peers[peer].config.name, with_causes(&error));
            }
        }
    }

    /// A call has ended.
    pub(super) fn handle_dialled(
        &mut self,
        peer: PeerSlot,
        generation: u64,
        result: Result<Box<Made>, DialError>,
    ) {
        let trusted = result.and_then(|mut made| {
            if self.is_still_trusted(peer, generation, &mut made.proof) {
                return Ok(made);
            }
            let reason = "the configuration has changed meanwhile".into();
            Err(DialError { reason, answered: false })
        });
        match trusted {
            Ok(made) => {
                let info = self.keep_made(peer, made);
                self.tell_peer(peer, PeerEvent::Dialled(Ok(info)));
                self.peers[peer].made.clear();
            }
            Err(error) => self.tell_peer(peer, PeerEvent::Dialled(Err(error))),
        }
    }

    pub(super) fn take_in(&mut self, peer: PeerSlot, made: Box<Made>) {
        let info = self.keep_made(peer, made);
        self.tell_peer(peer, PeerEvent::Accepted(info));
        self.peers[peer].made.clear();
    }

    fn find_peer(&self, peer: &PeerId) -> Option<PeerSlot> {
        self.peers.position(|known| !known.is_removed && known.config.name == peer.as_str())
    }

    pub(super) fn install_session(&mut self, peer: PeerSlot, id: SessionId) {
        let Some(made) = self.peers[peer].made.remove(&id) else { return };
        self.warn_of_differences(peer, &made);
        let known = &mut self.peers[peer];
        let Made {
            dialled,
            address,
            transport,
            version,
            number,
            outgoing,
            incoming,
            counts,
            takes,
            mtu_bytes,
            ecn,
            proof,
            instance,
            ..
        } = *made;
        let mut outgoing = outgoing;
        match &mut outgoing {
            SessionSender::Datagrams(sender) => {
                sender.set_outer(OuterConfig { ecn, ..known.config.outer });
                sender.set_gso(self.gso && known.batches.are_on());
            }
            SessionSender::Connections(sender) => sender.set_dead_after(self.dead_after),
        }
        let encrypted_bytes = if transport.is_encrypted() { TAG_BYTES } else { 0 };
        let installed = Installed {
            counts,
            dialled,
            address,
            heard: None,
            transport,
            version,
            encrypted_bytes,
            takes,
            mtu_bytes,
            proof,
            instance,
        };
        known.installed.insert(id, installed);
        let session = id;
        match incoming {
            Incoming::Datagrams(opened) => {
                let order = ingress::Order::Datagrams { peer, session, number, opened };
                self.orders.ingress_of_session(number, order);
            }
            Incoming::Connections(connections) => {
                let order = ingress::Order::Connections { peer, session, connections };
                self.orders.order_ingress(peer, order);
            }
        }
        let sender = Box::new(outgoing);
        self.orders.order_egress(peer, egress::Order::Install { peer, session, sender });
    }

    /// Warns, once each, of what the peer has configured otherwise than this host.
    fn warn_of_differences(&mut self, peer: PeerSlot, made: &Made) {
        let Made { mtu_bytes, accepts, transport, .. } = *made;
        let known = &mut self.peers[peer];
        let ours = self.introduction.mtu_bytes;
        if mtu_bytes != ours && known.mtu_bytes_said != Some(mtu_bytes) {
            warn!("peer {}: {}", known.config.name, other_mtu(ours, mtu_bytes));
            known.mtu_bytes_said = Some(mtu_bytes);
        }
        if known.dictionary_bytes.is_some()
            && transport.is_ordered()
            && CompressionLimits::MOST.limit_to(accepts).dictionaries == 0
            && known.accepts_said.replace(accepts) != Some(accepts)
        {
            warn!(
                "peer {}: it accepts no dictionary (its `accept_dictionary`), so each flow is \
                 compressed by itself",
                known.config.name
            );
        }
    }

    /// Makes the hello for a peer that this host calls.
    pub(super) fn build_hello(&self, peer: PeerSlot, epoch: u32) -> Hello {
        let config = &self.peers[peer].config;
        let PeerConfig { transport, connections, outer, .. } = *config;
        let session = self.shared.pairs.session_number(peer);
        let accepts = config.accepts();
        self.introduction.build_hello(session, epoch, transport, connections, accepts, outer.ecn)
    }

    pub(super) fn start_dial(&mut self, peer: PeerSlot, address: String, epoch: u32) {
        let hello = self.build_hello(peer, epoch);
        let known = &self.peers[peer];
        let (initiator, memory) = (Arc::clone(&known.initiator), Arc::clone(&known.memory));
        let (events, serial, generation) = (self.events.clone(), known.serial, self.reloads);
        let (failed, source) = (Arc::clone(&known.failed), known.config.source);
        let path = Arc::clone(&known.tcp_path);
        let spawned = std::thread::Builder::new().name("dial".into()).spawn(move || {
            let resolved = |addresses: &[SocketAddr]| {
                let addresses = addresses.iter().map(SocketAddr::ip).collect();
                events.send(ControlEvent::Resolved { peer, serial, addresses });
            };
            let (at, before) = ((&*address, source), (&*failed, &*path));
            let made = dial::dial(at, &initiator, hello, &memory, before, resolved);
            let result = made.map(Box::new);
            events.send(ControlEvent::Dialled { peer, serial, generation, result });
        });
        if let Err(error) = spawned {
            let reason = format!("no thread for a call: {error}");
            let result = Err(DialError { reason, answered: false });
            self.events.send(ControlEvent::Dialled { peer, serial, generation, result });
        }
    }
}
