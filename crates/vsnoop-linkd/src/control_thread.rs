//! The thread that decides: it keeps the peers' state machines and makes sessions.
//!
//! It never touches a frame. What the other threads see of interest comes as [`Event`]s; what the
//! state machines want goes to the data threads as orders. Handshakes run on threads of their own,
//! a bounded number of them, and end by a deadline.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tracing::{debug, info, warn};

use super::callers::Callers;
use super::causes::with_causes;
use super::complaints::Complaints;
use super::config::{Address, Config, PeerConfig, Transport, TrustConfig};
use super::counts::SessionCounts;
use super::establish::{self, Incoming, Introduction, Made};
use super::event::{Event, ReceivedDatagram, ReceivedMessage};
use super::fault::Fault;
use super::io::udp::{Ends, route_mtu};
use super::io::wake;
use super::ports::Ports;
use super::shared::Shared;
use super::tcp_handshake::{self, Established};
use super::{egress, ingress};
use vsnoop_link::compress::{DecoderMemory, Limits};
use vsnoop_link::handshake::{
    self, Admitted, Answer, Guard, GuardLimits, Hello, Permit, Purpose, Refusal, RefusalKind,
};
use vsnoop_link::identity::{Acceptor, Dialer, PeerId, PublicKey};
use vsnoop_link::session::{
    Action, DialError, End, Message, Peer, PeerEvent, PeerSettings, PeerSnapshot, SessionId,
    SessionInfo, canonical,
};
use vsnoop_link::wire::item::{FRAME_HEADER_BYTES, SESSION};
use vsnoop_link::wire::seal::{HEADER_BYTES, TAG_BYTES};

/// Data connections that may wait for the control connection of their session; more are closed.
const STRAYS: usize = 64;
/// A session that gets no further data connection for so long is given up.
const CONNECTIONS_IN: Duration = Duration::from_secs(10);
/// How often the egress thread hears of the path.
const PATH_EVERY: Duration = Duration::from_secs(1);
/// How often the host is asked how large packets to a peer may be.
const ROUTE_EVERY: Duration = Duration::from_secs(60);
/// Fewer say nothing about the share that is lost.
const FEW_PACKETS: f64 = 50.0;
/// IP and UDP header.
const V4_HEADERS_BYTES: usize = 20 + 8;
const V6_HEADERS_BYTES: usize = 40 + 8;
/// The minimum MTU of IPv6 (RFC 8200, section 5): assumed until the path's MTU was found.
const LEAST_MTU_BYTES: u16 = 1280;
const ORDINARY_MTU_BYTES: u16 = 1500;

/// A session that still waits for data connections.
struct Incomplete {
    control: Established,
    from: SocketAddr,
    connections: Vec<Established>,
    /// Since the last of them, or the beginning.
    since: Instant,
}

/// A session that the data threads have.
struct Installed {
    counts: Arc<SessionCounts>,
    /// We have called the peer.
    dialled: bool,
    address: SocketAddr,
    /// The addresses of the datagram that was received last.
    heard: Option<Ends>,
    transport: Transport,
    version: u16,
    encrypted_bytes: usize,
    /// See [`PeerEntry::takes`].
    takes: Vec<IpNet>,
    /// See [`PeerEntry::mtu_bytes`].
    mtu_bytes: u16,
}

/// One peer.
pub struct PeerEntry {
    pub config: PeerConfig,
    pub machine: Peer,
    settings: PeerSettings,
    dialer: Arc<Dialer>,
    /// Of its decoders in all sessions.
    memory: Arc<DecoderMemory>,
    made: HashMap<SessionId, Box<Made>>,
    installed: HashMap<SessionId, Installed>,
    incomplete: Vec<Incomplete>,
    path_mtu_bytes: u16,
    /// For whose packets, and when, the host was asked how large they may be.
    route_asked: Option<(SocketAddr, Instant)>,
    path_told: Instant,
    /// Lost and delivered, when it was told.
    path_counts: (u64, u64),
    /// Share of the datagrams.
    loss: f64,
    used: Option<SessionId>,
    /// The largest dictionary that rules of the file have for it, bytes.
    dictionary_bytes: Option<u32>,
    /// The limits of the peer that were warned of.
    accepts_said: Option<Limits>,
    /// The MTU of the peer that was warned of.
    mtu_bytes_said: Option<u16>,
}

impl PeerEntry {
    /// Version of the protocol and transport of the session in use.
    pub fn session(&self) -> Option<(u16, Transport)> {
        let installed = self.installed.get(&self.used?)?;
        Some((installed.version, installed.transport))
    }

    /// The prefixes to which the peer lets diverted packets in; `None` while there is no session.
    pub fn takes(&self) -> Option<&[IpNet]> {
        Some(&self.installed.get(&self.used?)?.takes)
    }

    /// The MTU of the VMs' network there; `None` while there is no session.
    pub fn mtu_bytes(&self) -> Option<u16> {
        Some(self.installed.get(&self.used?)?.mtu_bytes)
    }

    pub fn status(&self) -> PeerSnapshot {
        self.machine.status()
    }

    /// The MTU of the way to the peer, when it is time to ask the host for it: it is at another
    /// address, or was asked for long ago.
    fn ask_route(&mut self) -> Option<u16> {
        let installed = self.installed.get(&self.used?)?;
        let to = installed.address;
        let is_answered =
            |(of, when): (SocketAddr, Instant)| of.ip() == to.ip() && when.elapsed() < ROUTE_EVERY;
        if installed.transport.is_ordered() || self.route_asked.is_some_and(is_answered) {
            return None;
        }
        self.route_asked = Some((to, Instant::now()));
        // An interface of which nothing is known is an Ethernet's.
        Some(route_mtu(to).unwrap_or(ORDINARY_MTU_BYTES))
    }
}

pub struct Control {
    shared: Arc<Shared>,
    pub ports: Ports,
    introduction: Introduction,
    acceptor: Acceptor,
    ours: PublicKey,
    pub peers: Vec<PeerEntry>,
    strays: Vec<(Instant, Established)>,
    next_session: u64,
    egress: wake::Sender<egress::Order>,
    ingress: wake::Sender<ingress::Order>,
    events: wake::Sender<Event>,
    guard: Guard,
    complaints: Complaints,
    clamp_mss: bool,
    dead_after: Duration,
}

/// Arguments of [`Control::new`] besides the configuration.
pub struct Parts {
    pub shared: Arc<Shared>,
    pub ports: Ports,
    pub acceptor: Acceptor,
    pub dialers: Vec<Dialer>,
    pub ours: PublicKey,
    pub egress: wake::Sender<egress::Order>,
    pub ingress: wake::Sender<ingress::Order>,
    pub events: wake::Sender<Event>,
}

impl Control {
    pub fn new(config: &Config, parts: Parts) -> Self {
        let Parts { shared, ports, acceptor, dialers, ours, egress, ingress, events } = parts;
        let introduction = Introduction {
            network: config.network.clone(),
            instance: fastrand::u64(..),
            mtu_bytes: config.mtu_bytes,
            takes: config.local.clone(),
        };
        let now_ns = shared.now_ns();
        let peers = config.peers.iter().zip(dialers).map(|(peer, dialer)| {
            let address = peer.address.as_ref().map(ToString::to_string);
            let settings = PeerSettings {
                favoured: matches!(&peer.trust, TrustConfig::Key(theirs) if ours > *theirs),
                largest_packet_bytes: (!peer.transport.is_ordered()).then_some(LEAST_MTU_BYTES),
                dead_ns: config.dead_after.as_nanos() as u64,
                rekey_ns: config.rekey.as_nanos() as u64,
                address,
                ..PeerSettings::default()
            };
            PeerEntry {
                config: peer.clone(),
                machine: Peer::new(settings.clone(), fastrand::u64(..), now_ns),
                settings,
                dialer: Arc::new(dialer),
                memory: Arc::new(DecoderMemory::new(peer.decoder_bytes_max())),
                made: HashMap::new(),
                installed: HashMap::new(),
                incomplete: Vec::new(),
                path_mtu_bytes: LEAST_MTU_BYTES,
                route_asked: None,
                path_told: Instant::now(),
                path_counts: (0, 0),
                loss: 0.0,
                used: None,
                dictionary_bytes: config.compress.largest_dictionary(&peer.name),
                accepts_said: None,
                mtu_bytes_said: None,
            }
        });
        let peers = peers.collect();
        let guard = Guard::new(GuardLimits::default());
        for (peer, config) in config.peers.iter().enumerate() {
            // Names are resolved when they are called.
            let literal = config.address.as_ref().and_then(Address::literal);
            guard.set_peer(peer, literal);
        }
        let control = Self {
            shared,
            ports,
            introduction,
            acceptor,
            ours,
            peers,
            strays: Vec::new(),
            next_session: 1,
            egress,
            ingress,
            events,
            guard,
            complaints: Complaints::default(),
            clamp_mss: config.clamp_mss,
            dead_after: config.dead_after,
        };
        control.bound_frames();
        control
    }

    /// See [`PeerEntry::takes`].
    pub fn takes(&self, peer: usize) -> Option<&[IpNet]> {
        self.peers.get(peer)?.takes()
    }

    /// Callers that were turned away before they had said anything.
    pub fn callers_turned_away(&self) -> u64 {
        self.guard.counts().turned_away()
    }

    /// When [`tick`](Self::tick) is due.
    pub fn deadline(&self) -> Duration {
        let next = self.peers.iter().map(|peer| peer.machine.deadline_ns()).min();
        let now_ns = self.shared.now_ns();
        let wait = Duration::from_nanos(next.unwrap_or(u64::MAX).saturating_sub(now_ns));
        wait.min(Duration::from_secs(1))
    }

    /// Lets time pass.
    pub fn tick(&mut self) {
        for peer in 0..self.peers.len() {
            self.tell_traffic(peer);
            self.tell(peer, PeerEvent::Tick);
            self.tell_path(peer);
            self.peers[peer].incomplete.retain(|session| session.since.elapsed() < CONNECTIONS_IN);
        }
        self.strays.retain(|(since, _)| since.elapsed() < CONNECTIONS_IN);
        self.ports.follow();
    }

    /// Sends a close message to all peers, and stops the data threads.
    pub fn close(&mut self) {
        for peer in 0..self.peers.len() {
            self.tell(peer, PeerEvent::Close);
        }
        self.egress.send(egress::Order::Stop);
        self.ingress.send(ingress::Order::Stop);
    }

    /// Takes what another thread told.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::Message(message) => self.message(&message),
            Event::Moved { peer, session, ends } => {
                self.received(peer, SessionId(session), ends, true);
            }
            Event::Outgoing { peer, session, fault: Fault::Broken(why) }
            | Event::Incoming { peer, session, why } => {
                self.tell(peer, PeerEvent::Failed { session: SessionId(session), reason: why });
            }
            Event::NotAccepted { peer, session, why } => {
                warn!(
                    "peer {}: {why}, against what this host has told it: the session ends",
                    self.peers[peer].config.name
                );
                self.tell(peer, PeerEvent::Failed { session: SessionId(session), reason: why });
            }
            Event::Outgoing { peer, session, fault: Fault::TooLong { bytes } } => {
                self.too_long(peer, SessionId(session), bytes);
            }
            Event::PortFailed { port, error } => self.ports.failed(port, error),
            // Its hook sees that, too, and says what follows.
            Event::DivertTapFailed { divert_tap, error } => {
                let divert_taps = self
                    .shared
                    .divert_taps
                    .as_ref()
                    .and_then(|divert_taps| divert_taps.taps.get(divert_tap));
                let name = divert_taps.map_or("?", |divert_tap| divert_tap.port.name());
                warn!("tap {name}: {error}; no diverted frames come from it");
            }
            Event::Dialled { peer, result } => match result {
                Ok(made) => {
                    let info = self.keep(peer, made);
                    self.tell(peer, PeerEvent::Dialled(Ok(info)));
                    self.peers[peer].made.clear();
                }
                Err(error) => self.tell(peer, PeerEvent::Dialled(Err(error))),
            },
            Event::Accepted { from, established } => match established {
                Ok(established) => self.accepted(from, *established),
                Err(error) => self.turned_away(from, &error),
            },
        }
    }

    /// The host refused a datagram of so many bytes: its interface may take less than before.
    fn too_long(&mut self, peer: usize, session: SessionId, bytes: usize) {
        let known = &mut self.peers[peer];
        let Some(installed) = known.installed.get(&session).filter(|_| known.used == Some(session))
        else {
            return;
        };
        let size = bytes + headers_bytes(installed.address);
        known.route_asked = None;
        let size_bytes = size.min(u16::MAX.into()) as u16;
        self.tell(peer, PeerEvent::TooBig { size_bytes });
    }

    fn turned_away(&mut self, from: SocketAddr, error: &handshake::Error) {
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

    fn message(&mut self, got: &ReceivedMessage) {
        let Some(message) = Message::read(&got.item) else { return };
        let (peer, session) = (got.peer, SessionId(got.session));
        let Some(installed) = self.peers[peer].installed.get(&session) else { return };
        let (ends, newest, size) = match got.datagram {
            Some(ReceivedDatagram { ends, is_newest, bytes }) => {
                (ends, is_newest, bytes + headers_bytes(ends.peer))
            }
            None => {
                let ends = Ends { peer: installed.address, local: None };
                (ends, true, got.item.len())
            }
        };
        self.tell_traffic(peer);
        self.received(peer, session, ends, newest);
        let size_bytes = size.min(u16::MAX.into()) as u16;
        let received_ns = self.shared.now_ns();
        self.tell(peer, PeerEvent::Message { session, message, size_bytes, received_ns });
    }

    /// A session's datagram came, or something by its connections.
    fn received(&mut self, peer: usize, session: SessionId, ends: Ends, newest: bool) {
        // Also of one that was overtaken: the answer to a probe of another path may be.
        if let Some(installed) = self.peers[peer].installed.get_mut(&session) {
            installed.heard = Some(ends);
        }
        self.tell(peer, PeerEvent::Received { session, from: ends.peer, newest });
    }

    /// Keeps a session until its machine has said what becomes of it.
    fn keep(&mut self, peer: usize, made: Box<Made>) -> SessionInfo {
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let info = SessionInfo {
            id,
            dialler: if made.dialled { End::Us } else { End::Peer },
            epoch: made.epoch,
            instance: made.instance,
            address: made.address,
        };
        let known = &mut self.peers[peer];
        let favoured = self.ours > made.peer_key;
        if known.settings.favoured != favoured {
            // The key of a peer with a subject is known from its handshake.
            known.settings.favoured = favoured;
            let settings = known.settings.clone();
            known.made.insert(id, made);
            self.tell(peer, PeerEvent::Configured(settings));
        } else {
            known.made.insert(id, made);
        }
        info
    }

    fn accepted(&mut self, from: SocketAddr, established: Established) {
        let Some(peer) = self.index_of(&established.peer) else { return };
        match established.purpose {
            Purpose::Control if establish::is_ordered(established.agreed.transport) => {
                let incomplete = Incomplete {
                    control: established,
                    from,
                    connections: Vec::new(),
                    since: Instant::now(),
                };
                let known = &mut self.peers[peer];
                // One that dials again has given up what it had begun.
                known.incomplete.clear();
                known.incomplete.push(incomplete);
                for (since, stray) in std::mem::take(&mut self.strays) {
                    self.add_connection(since, stray);
                }
            }
            Purpose::Control => match establish::datagrams(established, from, false) {
                Ok(made) => self.take_in(peer, Box::new(made)),
                Err(error) => {
                    warn!("peer {}: {}", self.peers[peer].config.name, with_causes(&error));
                }
            },
            Purpose::Data { .. } => self.add_connection(Instant::now(), established),
        }
    }

    /// Adds a data connection to its session, or keeps it until the session is known.
    fn add_connection(&mut self, since: Instant, connection: Established) {
        let (Some(peer), Purpose::Data { session, .. }) =
            (self.index_of(&connection.peer), connection.purpose)
        else {
            return;
        };
        let incomplete = &mut self.peers[peer].incomplete;
        let Some(at) = incomplete.iter().position(|waits| waits.control.ours.session == session)
        else {
            if self.strays.len() < STRAYS {
                self.strays.push((since, connection));
            }
            return;
        };
        incomplete[at].connections.push(connection);
        incomplete[at].since = Instant::now();
        let wanted = 2 * usize::from(incomplete[at].control.agreed.connections.max(1));
        if incomplete[at].connections.len() < wanted {
            return;
        }
        let Incomplete { control, from, connections, .. } = incomplete.swap_remove(at);
        let memory = &self.peers[peer].memory;
        match establish::ordered(control, connections, from, false, memory, self.dead_after) {
            Ok(made) => self.take_in(peer, Box::new(made)),
            Err(error) => {
                warn!("peer {}: {}", self.peers[peer].config.name, with_causes(&error));
            }
        }
    }

    fn take_in(&mut self, peer: usize, made: Box<Made>) {
        let info = self.keep(peer, made);
        self.tell(peer, PeerEvent::Accepted(info));
        self.peers[peer].made.clear();
    }

    fn index_of(&self, peer: &PeerId) -> Option<usize> {
        self.peers.iter().position(|known| known.config.name == peer.as_str())
    }

    fn tell_traffic(&mut self, peer: usize) {
        let installed = &self.peers[peer].installed;
        let traffic: Vec<_> =
            installed.iter().map(|(id, session)| (*id, session.counts.traffic())).collect();
        for (id, traffic) in traffic {
            self.tell(peer, PeerEvent::Traffic(id, traffic));
        }
    }

    /// Tells the compressor what the state machine measured of the path; about once a second.
    fn tell_path(&mut self, peer: usize) {
        let known = &mut self.peers[peer];
        let Some(used) = known.used else { return };
        if known.path_told.elapsed() < PATH_EVERY {
            return;
        }
        known.path_told = Instant::now();
        let delivery = known.machine.status().delivery;
        let (lost_before, delivered_before) = known.path_counts;
        known.path_counts = (delivery.lost_out_packets, delivery.delivered_packets);
        let lost = delivery.lost_out_packets.saturating_sub(lost_before) as f64;
        let delivered = delivery.delivered_packets.saturating_sub(delivered_before) as f64;
        if lost + delivered >= FEW_PACKETS {
            // Smoothed over some seconds: a burst is not a bad path.
            known.loss += (lost / (lost + delivered) - known.loss) / 4.0;
        }
        self.egress.send(egress::Order::Path {
            peer,
            session: used.0,
            loss: known.loss,
            bytes_per_s: delivery.path_bytes_per_s,
        });
    }

    fn tell(&mut self, peer: usize, event: PeerEvent) {
        let now_ns = self.shared.now_ns();
        for action in self.peers[peer].machine.handle(event, now_ns) {
            self.act(peer, action);
        }
        if let Some(bytes) = self.peers[peer].ask_route() {
            self.tell(peer, PeerEvent::Largest(bytes));
        }
    }

    fn act(&mut self, peer: usize, action: Action) {
        match action {
            Action::Dial { address, epoch } => self.dial(peer, address, epoch),
            Action::Install(id) => self.install(peer, id),
            Action::Use(id) => {
                self.peers[peer].used = Some(id);
                self.egress.send(egress::Order::Use { peer, session: id.0 });
                self.limit(peer);
            }
            Action::Forget(id) => {
                let known = &mut self.peers[peer];
                known.installed.remove(&id);
                if known.used == Some(id) {
                    known.used = None;
                }
                self.egress.send(egress::Order::Retire { peer, session: id.0 });
                self.ingress.send(ingress::Order::Retire { session: id.0 });
            }
            Action::Down => {
                self.peers[peer].used = None;
                self.egress.send(egress::Order::Down { peer });
                self.bound_frames();
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
                let to = to.map(|to| self.ends(peer, session, to));
                let order = egress::Order::Message { peer, session: session.0, item, pad_to, to };
                self.egress.send(order);
            }
            Action::Roam(id, address) => {
                if let Some(installed) = self.peers[peer].installed.get_mut(&id) {
                    installed.address = address;
                }
                let ends = self.ends(peer, id, address);
                self.egress.send(egress::Order::Address { peer, session: id.0, ends });
            }
            Action::PathMtu(bytes) => {
                self.peers[peer].path_mtu_bytes = bytes;
                self.limit(peer);
            }
            Action::Report(report) => info!("peer {}: {report}", self.peers[peer].config.name),
        }
    }

    /// The addresses for what a session sends to `address`: what comes from there has called one of
    /// ours, from which the peer expects answers. Whom we have called, we may reach by any.
    fn ends(&self, peer: usize, id: SessionId, address: SocketAddr) -> Ends {
        let installed = self.peers[peer].installed.get(&id);
        let called = installed.filter(|installed| !installed.dialled);
        let heard = called.and_then(|installed| installed.heard);
        let from_there = heard.filter(|heard| heard.peer == address);
        Ends { peer: address, local: from_there.and_then(|heard| heard.local) }
    }

    fn install(&mut self, peer: usize, id: SessionId) {
        let known = &mut self.peers[peer];
        let Some(made) = known.made.remove(&id) else { return };
        let Made {
            dialled,
            address,
            transport,
            version,
            index,
            outgoing,
            incoming,
            counts,
            takes,
            mtu_bytes,
            accepts,
            ..
        } = *made;
        let encrypted_bytes = if transport.is_encrypted() { TAG_BYTES } else { 0 };
        let ours = self.introduction.mtu_bytes;
        if mtu_bytes != ours && known.mtu_bytes_said != Some(mtu_bytes) {
            warn!("peer {}: {}", known.config.name, other_mtu(ours, mtu_bytes));
            known.mtu_bytes_said = Some(mtu_bytes);
        }
        if known.dictionary_bytes.is_some()
            && transport.is_ordered()
            && Limits::MOST.within(accepts).dictionaries == 0
            && known.accepts_said.replace(accepts) != Some(accepts)
        {
            warn!(
                "peer {}: it accepts no dictionary (its `accept_dictionary`), so each flow is \
                 compressed by itself",
                known.config.name
            );
        }
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
        };
        known.installed.insert(id, installed);
        let order = match incoming {
            Incoming::Datagrams(opened) => {
                ingress::Order::Datagrams { peer, session: id.0, index, opened }
            }
            Incoming::Connections(connections) => {
                ingress::Order::Connections { peer, session: id.0, connections }
            }
        };
        self.ingress.send(order);
        self.egress.send(egress::Order::Install {
            peer,
            session: id.0,
            sender: Box::new(outgoing),
        });
    }

    /// Tells the data thread how long datagrams may be.
    fn limit(&self, peer: usize) {
        let known = &self.peers[peer];
        let Some((id, installed)) = known.used.and_then(|id| Some((id, known.installed.get(&id)?)))
        else {
            return;
        };
        let bytes =
            usize::from(known.path_mtu_bytes).saturating_sub(headers_bytes(installed.address));
        self.egress.send(egress::Order::Limit { peer, session: id.0, bytes });
        self.bound_frames();
    }

    /// Bounds the MSS of TCP by the size of datagrams to each peer, so that no frame has to be
    /// split.
    fn bound_frames(&self) {
        let room = |known: &PeerEntry| {
            let installed = known.installed.get(&known.used?)?;
            if installed.transport.is_ordered() {
                return None;
            }
            let around = headers_bytes(installed.address)
                + HEADER_BYTES
                + installed.encrypted_bytes
                + FRAME_HEADER_BYTES;
            Some(usize::from(known.path_mtu_bytes).saturating_sub(around))
        };
        for (peer, known) in self.peers.iter().enumerate() {
            self.shared.set_frame_limit(peer, room(known).filter(|_| self.clamp_mss));
        }
    }

    fn dial(&mut self, peer: usize, address: String, epoch: u32) {
        let known = &self.peers[peer];
        let config = &known.config;
        let hello =
            self.introduction.hello(epoch, config.transport, config.connections, config.accepts());
        let (dialer, memory) = (Arc::clone(&known.dialer), Arc::clone(&known.memory));
        let events = self.events.clone();
        let guard = self.guard.clone();
        let dead_after = self.dead_after;
        let spawned = std::thread::Builder::new().name("dial".into()).spawn(move || {
            // A peer that can be dialled may also call.
            let resolved = |addresses: &[SocketAddr]| {
                guard.set_peer(peer, addresses.iter().map(SocketAddr::ip));
            };
            let made = establish::dial(&address, &dialer, hello, &memory, dead_after, resolved);
            let result = made.map(Box::new);
            events.send(Event::Dialled { peer, result });
        });
        if let Err(error) = spawned {
            let reason = format!("no thread for a call: {error}");
            let result = Err(DialError { reason, answered: false });
            self.events.send(Event::Dialled { peer, result });
        }
    }

    /// Starts a thread that takes callers.
    pub fn listen(&self, listener: TcpListener) -> std::io::Result<()> {
        let callers = Callers::default();
        let welcome = Welcome {
            callers: callers.clone(),
            shared: Arc::clone(&self.shared),
            introduction: self.introduction.clone(),
            acceptor: self.acceptor.clone(),
            peers: self.peers.iter().map(|known| known.config.clone()).collect(),
            events: self.events.clone(),
        };
        let welcome = Arc::new(welcome);
        let (guard, shared) = (self.guard.clone(), Arc::clone(&self.shared));
        let accept = move || {
            loop {
                let Ok((stream, from)) = listener.accept() else {
                    // Out of descriptors, most likely: not a reason to spin.
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                };
                let from = canonical(from);
                let Ok(admitted) = guard.admit(from.ip(), shared.now_ns()) else { continue };
                let Admitted { permit, displaced } = admitted;
                if let Some(displaced) = displaced {
                    callers.end(displaced);
                }
                let id = permit.id();
                callers.begin(id, &stream);
                let welcome = Arc::clone(&welcome);
                let taken = std::thread::Builder::new()
                    .name("accept".into())
                    .spawn(move || welcome.handshake(stream, from, permit));
                if let Err(error) = taken {
                    callers.forget(id);
                    debug!("no thread for a caller from {from}: {error}");
                }
            }
        };
        std::thread::Builder::new().name("listen".into()).spawn(accept).map(drop)
    }
}

/// Context of a thread that answers a caller.
struct Welcome {
    callers: Callers,
    shared: Arc<Shared>,
    introduction: Introduction,
    acceptor: Acceptor,
    peers: Vec<PeerConfig>,
    events: wake::Sender<Event>,
}

impl Welcome {
    fn handshake(&self, stream: std::net::TcpStream, from: SocketAddr, permit: Permit) {
        let deadline = Instant::now() + permit.allowance().min(tcp_handshake::DEADLINE);
        let policy = |peer: &PeerId, theirs: &Hello| self.answer(peer, theirs);
        let established = if permit.is_challenged() {
            let network = &self.introduction.network;
            let may_go_on = || permit.answered(self.shared.now_ns());
            tcp_handshake::accept_challenged(
                stream,
                &self.acceptor,
                network,
                may_go_on,
                &policy,
                deadline,
            )
        } else {
            tcp_handshake::accept(stream, &self.acceptor, &policy, deadline)
        };
        self.callers.forget(permit.id());
        if established.is_ok() {
            permit.authenticated();
        }
        self.events.send(Event::Accepted { from, established: established.map(Box::new) });
    }

    fn answer(&self, peer: &PeerId, theirs: &Hello) -> Answer {
        let Some(peer) = self.peers.iter().find(|known| known.name == peer.as_str()) else {
            let reason = "this host does not know the peer";
            return Answer::Refuse(Refusal::new(RefusalKind::Other, reason));
        };
        let epoch = theirs.epoch.into();
        let accepts = peer.accepts();
        let hello = self.introduction.hello(epoch, peer.transport, peer.connections, accepts);
        Answer::Accept(Hello { purpose: theirs.purpose, ..hello })
    }
}

/// Message about a peer with another `link.mtu`.
pub fn other_mtu(ours: u16, theirs: u16) -> String {
    format!("link.mtu is {ours} here and {theirs} there")
}

fn headers_bytes(address: SocketAddr) -> usize {
    if address.is_ipv4() { V4_HEADERS_BYTES } else { V6_HEADERS_BYTES }
}
