//! The thread that decides: it keeps the peers' state machines and makes sessions.
//!
//! It never touches a frame. What the other threads see of interest comes as [`ControlEvent`]s;
//! what the state machines want goes to the data threads as orders. Handshakes run on threads of
//! their own, a bounded number of them, and end by a deadline.

mod accept;
mod deadlines;
mod introductions;
mod paths;
mod peer_entry;
mod reload;
mod sessions;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tracing::{debug, info, warn};

use self::accept::{CallListener, ListenerConfig};
use self::deadlines::Deadlines;
use self::peer_entry::NewPeer;
use self::peer_entry::headers_bytes;
pub use self::peer_entry::{PeerEntry, other_mtu};
pub use self::reload::NewPeers;
use crate::config::{Address, Config};
use crate::handshake::complaints::Complaints;
use crate::handshake::establish::Introduction;
use crate::handshake::tcp_handshake::Established;
use crate::io::udp::Endpoints;
use crate::io::wake;
use crate::ports::layer_2::Layer2;
use crate::ports::state::Ports;
use crate::threads::event::{ControlEvent, MessageKind, ReceivedDatagram, ReceivedMessage};
use crate::threads::fault::{Fault, ReceiveError};
use crate::threads::orders::Orders;
use crate::threads::shared::Shared;
use crate::threads::slots::{BySlot, Slots};
use crate::{egress, ingress};
use vsnoop_link::forwarding::Location;
use vsnoop_link::handshake::{self, Guard, GuardLimits};
use vsnoop_link::identity::{Acceptor, Initiator, PublicKey};
use vsnoop_link::introduction::Hub;
use vsnoop_link::session::{Action, Message, PeerEvent, SessionId};
use vsnoop_link::slots::{FrameSource, PeerSlot, Slot};
use vsnoop_link::wire::item::SESSION;

pub struct ControlThread {
    shared: Arc<Shared>,
    pub ports: Ports,
    introduction: Introduction,
    listener: CallListener,
    ours: PublicKey,
    next_serial: u64,
    /// Reloads so far.
    reloads: u64,
    /// Also those that were removed.
    pub peers: BySlot<PeerSlot, PeerEntry>,
    /// When each peer's machine is due.
    deadlines: Deadlines,
    strays: Vec<(Instant, Established)>,
    next_session: SessionId,
    orders: Orders,
    events: wake::Sender<ControlEvent>,
    guard: Guard,
    complaints: Complaints,
    /// For the peers that this host relays between.
    hub: Hub,
    clamp_mss: bool,
    /// Datagrams may leave together (UDP GSO).
    gso: bool,
    dead_after: Duration,
    /// Faults at layer 2.
    pub layer_2: Layer2,
}

/// Arguments of [`ControlThread::new`] besides the configuration.
pub struct Parts {
    pub shared: Arc<Shared>,
    pub ports: Ports,
    pub acceptor: Acceptor,
    pub initiators: Vec<Initiator>,
    pub ours: PublicKey,
    pub orders: Orders,
    pub events: wake::Sender<ControlEvent>,
}

impl ControlThread {
    pub fn new(config: &Config, parts: Parts) -> Self {
        let Parts { shared, ports, acceptor, initiators, ours, orders, events } = parts;
        let introduction = Introduction {
            network: config.network.clone(),
            instance: fastrand::u64(..),
            mtu_bytes: config.mtu_bytes,
            takes: config.local.clone(),
        };
        let now_ns = shared.now_ns();
        let slots = (0..).map_while(PeerSlot::at);
        let peers: BySlot<_, _> = slots
            .zip(config.peers.iter().zip(initiators))
            .map(|(slot, (peer, initiator))| {
                let (serial, pairs) = (1 + slot.index() as u64, shared.pairs);
                let new = NewPeer { slot, serial, initiator, ours, pairs };
                PeerEntry::new(peer, config, new, now_ns)
            })
            .collect();
        let guard = Guard::new(GuardLimits::default());
        for (peer, config) in peers.slots().zip(&config.peers) {
            // Names are resolved when they are called.
            guard.set_peer(peer, config.addresses.iter().filter_map(Address::literal));
        }
        let accept = ListenerConfig {
            introduction: introduction.clone(),
            acceptor,
            peers: config.peers.clone(),
            slots: Slots::new(config.peers.iter().map(|peer| &peer.name)),
            pairs: shared.pairs,
            generation: 0,
        };
        let listener = CallListener::new(accept, guard.clone(), shared.clock, events.clone());
        let mut control = Self {
            shared,
            ports,
            introduction,
            listener,
            ours,
            next_serial: 1 + peers.len() as u64,
            reloads: 0,
            peers,
            deadlines: Deadlines::default(),
            strays: Vec::new(),
            next_session: SessionId(1),
            orders,
            events,
            guard,
            complaints: Complaints::default(),
            hub: Hub::default(),
            clamp_mss: config.clamp_mss,
            gso: config.gso,
            dead_after: config.dead_after,
            layer_2: Layer2::new(config.loops),
        };
        // All are due.
        if let Some(last) = control.peers.slots().last() {
            control.deadlines.set(last, 0);
        }
        control
    }

    /// See [`PeerEntry::takes`].
    pub fn takes(&self, peer: PeerSlot) -> Option<&[IpNet]> {
        self.peers.get(peer)?.takes()
    }

    /// Callers that were turned away before they had said anything.
    pub fn callers_turned_away(&self) -> u64 {
        self.guard.counts().turned_away()
    }

    /// When [`tick`](Self::tick) is due.
    pub fn time_to_deadline(&self) -> Duration {
        let next_ns = self.deadlines.next_ns().min(self.hub.deadline_ns());
        let wait_ns = next_ns.saturating_sub(self.shared.now_ns());
        Duration::from_nanos(wait_ns).min(Duration::from_secs(1))
    }

    /// Whether a peer has a session that is used.
    pub fn is_up(&self, peer: PeerSlot) -> bool {
        self.peers.get(peer).is_some_and(|known| known.used.is_some())
    }

    /// Replaces all sessions by others, which show what this host shows now.
    pub fn renew_addresses(&mut self) {
        for peer in self.peers.slots() {
            if !self.peers[peer].is_removed {
                self.tell_peer(peer, PeerEvent::Renew);
            }
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self) {
        for peer in self.deadlines.take_due(self.shared.now_ns()) {
            self.tell_traffic(peer);
            self.tick_contact(peer);
            self.tell_peer(peer, PeerEvent::Tick);
            self.tell_path(peer);
            self.end_proofs(peer);
            self.expire_incomplete(peer);
        }
        let actions = self.hub.tick(self.shared.now_ns());
        self.act_as_hub(actions);
        self.expire_strays();
        self.ports.follow_devices();
        let peers = &self.peers;
        self.layer_2.follow_table(&self.shared, |slot| Some(peers.get(slot)?.config.name.as_str()));
    }

    /// Takes callers from now on, on a thread of its own.
    pub fn listen(&self, listener: TcpListener) -> std::io::Result<()> {
        self.listener.listen(listener)
    }

    /// Sends a close message to all peers, and stops the data threads.
    pub fn close_sessions(&mut self) {
        for peer in self.peers.slots() {
            self.tell_peer(peer, PeerEvent::Close);
        }
        self.orders.order_stop();
    }

    /// Takes what another thread told.
    pub fn handle_event(&mut self, event: ControlEvent) {
        match event {
            ControlEvent::Message(message) => match message.kind {
                MessageKind::Session => self.handle_message(&message),
                MessageKind::Introduction => self.handle_introduction(&message),
            },
            ControlEvent::Moved { peer, session, ends } => {
                self.handle_received(peer, session, ends, true);
            }
            ControlEvent::Outgoing { peer, session, fault: Fault::Broken(error) } => {
                if error.kind() == std::io::ErrorKind::TimedOut {
                    self.note_silence(peer, session);
                }
                self.handle_failure(peer, session, &error);
            }
            ControlEvent::Incoming { peer, session, error } => {
                if matches!(error, ReceiveError::NotAccepted(_)) {
                    warn!(
                        "peer {}: {error}, against what this host has told it: the session ends",
                        self.peers[peer].config.name
                    );
                }
                self.handle_failure(peer, session, &error);
            }
            ControlEvent::Outgoing { peer, session, fault: Fault::TooLong { bytes } } => {
                self.note_too_long(peer, session, bytes);
            }
            ControlEvent::SourceFailed { source, error } => match source {
                FrameSource::Port(port) => self.ports.note_failed(port, error),
                // Its hook sees that, too, and says what follows.
                FrameSource::DivertTap(tap) => {
                    let taps = self.shared.divert_taps.as_ref();
                    let tap = taps.and_then(|taps| taps.find_tap(tap));
                    let name = tap.map_or("?", |tap| tap.port.name());
                    warn!("tap {name}: {error}; no diverted frames come from it");
                }
                FrameSource::Peer(_) => {}
            },
            // A peer that can be dialled may also call.
            ControlEvent::Resolved { peer, serial, addresses } => {
                let known = &self.peers[peer];
                if known.serial == serial && !known.is_removed {
                    self.guard.set_peer(peer, addresses);
                }
            }
            // It was of a peer that had the number before.
            ControlEvent::Dialled { peer, serial, .. } if self.peers[peer].serial != serial => {}
            ControlEvent::Dialled { peer, generation, result, .. } => {
                self.handle_dialled(peer, generation, result)
            }
            ControlEvent::Accepted { from, generation, established } => match established {
                Ok(established) => self.handle_accepted(from, generation, *established),
                Err(error) => self.log_refused_caller(from, &error),
            },
        }
    }

    fn log_refused_caller(&mut self, from: SocketAddr, error: &handshake::Error) {
        let who = match error.peer() {
            Some(peer) => format!("peer {peer} at {from}"),
            None => format!("a caller from {from}"),
        };
        if self.complaints.is_due(from.ip(), error, self.shared.now_ns()) {
            warn!("{who}: {}", error.what());
        } else {
            debug!("{who}: {}", error.what());
        }
    }

    fn handle_message(&mut self, got: &ReceivedMessage) {
        let Some(message) = Message::read(&got.item) else { return };
        let (peer, session) = (got.peer, got.session);
        let Some(installed) = self.peers[peer].installed.get(&session) else { return };
        let (ends, newest, size) = match got.datagram {
            Some(ReceivedDatagram { ends, is_newest, bytes }) => {
                (ends, is_newest, bytes + headers_bytes(ends.peer))
            }
            None => {
                let ends = Endpoints { peer: installed.address, local: None };
                (ends, true, got.item.len())
            }
        };
        self.tell_traffic(peer);
        self.handle_received(peer, session, ends, newest);
        let size_bytes = size.min(u16::MAX.into()) as u16;
        let received_ns = self.shared.now_ns();
        self.tell_peer(peer, PeerEvent::Message { session, message, size_bytes, received_ns });
    }

    /// A session's datagram came, or something by its connections.
    fn handle_received(
        &mut self,
        peer: PeerSlot,
        session: SessionId,
        ends: Endpoints,
        newest: bool,
    ) {
        // Also of one that was overtaken: the answer to a probe of another path may be.
        if let Some(installed) = self.peers[peer].installed.get_mut(&session) {
            installed.heard = Some(ends);
        }
        self.tell_peer(peer, PeerEvent::Received { session, from: ends.peer, newest });
    }

    /// A session has become unusable.
    fn handle_failure(
        &mut self,
        peer: PeerSlot,
        session: SessionId,
        error: &dyn std::error::Error,
    ) {
        let reason = error.to_string();
        self.tell_peer(peer, PeerEvent::Failed { session, reason });
    }

    fn note_silence(&self, peer: PeerSlot, session: SessionId) {
        let known = &self.peers[peer];
        if let Some(session) = known.installed.get(&session)
            && session.transport.is_ordered()
        {
            known.tcp_path.fell_silent(session.instance);
        }
    }

    fn tell_traffic(&mut self, peer: PeerSlot) {
        let installed = &self.peers[peer].installed;
        let traffic: Vec<_> =
            installed.iter().map(|(id, session)| (*id, session.counts.traffic())).collect();
        for (id, traffic) in traffic {
            self.tell_peer(peer, PeerEvent::Traffic(id, traffic));
        }
    }

    fn tell_peer(&mut self, peer: PeerSlot, event: PeerEvent) {
        let now_ns = self.shared.now_ns();
        for action in self.peers[peer].machine.handle_event(event, now_ns) {
            self.act_for_peer(peer, action);
        }
        if let Some(bytes) = self.peers[peer].ask_route() {
            self.tell_peer(peer, PeerEvent::Largest(bytes));
        }
        self.deadlines.set(peer, self.peers[peer].deadline_ns());
    }

    fn act_for_peer(&mut self, peer: PeerSlot, action: Action) {
        match action {
            Action::Dial { epoch, .. } if self.peers[peer].config.via.is_some() => {
                self.dial_by_hub(peer, epoch);
            }
            Action::Dial { address, epoch } => self.start_dial(peer, address, epoch),
            Action::Install(id) => self.install_session(peer, id),
            Action::Use(id) => {
                if self.peers[peer].used.replace(id).is_none() {
                    let (location, now_ns) = (Location::Peer(peer), self.shared.now_ns());
                    self.shared.table.write().note_arrival(location, now_ns);
                }
                self.orders.order_egress(peer, egress::Order::Use { peer, session: id });
                self.tell_limit(peer);
                self.note_up(peer);
                self.ask_behind(peer, true);
            }
            Action::Forget(id) => {
                let known = &mut self.peers[peer];
                known.installed.remove(&id);
                if known.used == Some(id) {
                    known.used = None;
                }
                self.orders.order_egress(peer, egress::Order::Retire { peer, session: id });
                self.orders.each_ingress(|| ingress::Order::Retire { session: id });
            }
            Action::Silent(id) => self.note_silence(peer, id),
            Action::Down => {
                self.peers[peer].used = None;
                self.orders.order_egress(peer, egress::Order::Down { peer });
                self.bound_frames(peer);
                self.note_down(peer);
            }
            Action::Send { session, message, packet_bytes, to } => {
                let Some(installed) = self.peers[peer].installed.get(&session) else { return };
                let headers = headers_bytes(installed.address);
                let mut item = vec![0; 1 + vsnoop_link::session::message::LARGEST_BYTES];
                item[0] = SESSION;
                let Some(length) = message.write(&mut item[1..]) else { return };
                item.truncate(1 + length);
                let pad_to =
                    packet_bytes.map_or(0, |bytes| usize::from(bytes) - headers.min(bytes.into()));
                let to = to.map(|to| self.find_ends(peer, session, to));
                let order = egress::Order::Message { peer, session, item, pad_to, to };
                self.orders.order_egress(peer, order);
            }
            Action::Roam(id, address) => {
                if let Some(installed) = self.peers[peer].installed.get_mut(&id) {
                    installed.address = address;
                }
                let ends = self.find_ends(peer, id, address);
                self.orders.order_egress(peer, egress::Order::Address { peer, session: id, ends });
                self.note_up(peer);
            }
            Action::PathMtu(bytes) => {
                self.peers[peer].path_mtu_bytes = bytes;
                self.tell_limit(peer);
            }
            Action::Report(report) => info!("peer {}: {report}", self.peers[peer].config.name),
        }
    }
}
