//! The half that carries frames from local ports to peers.
//!
//! It alone reads the ports and writes to the network, so that nothing here is shared: it reads
//! what waits at a port (or at its own queue of it) into one arena, merges what guests without
//! offloads sent in pieces (for ordered transports and compression, which gain from it), looks up
//! where each frame goes, and hands it to the peer's sender. Divert taps are read alike; their
//! frames are routed by prefix, without the forwarding table. Frames of peers for other peers come
//! from the other half, and frames for peers that another pair serves go to it
//! ([`relay`](crate::relay)). Datagrams leave at the end of each batch. The control thread installs
//! and retires sessions by [`Order`]s.

mod batch;
pub mod connection;
pub mod datagrams;
mod path_rate;
pub mod peer_sender;
mod pieces;
mod send_context;
mod senders;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use vsnoop_link::wire::item::Way;
use vsnoop_packet::mss;
use vsnoop_packet::offload::merge::Merger;

use self::batch::{BatchBuffer, ReadEnd};
use self::peer_sender::{PeerSender, SessionSender};
use self::send_context::SendContext;
use self::senders::Senders;
use super::compression_policy::{FIRST_DIVERT_TAP, FIRST_RELAYED, FlowCounts, Policies};
use super::counted_port::CountedPort;
use super::divert::taps::DivertTaps;
use super::event::ControlEvent;
use super::fault::Fault;
use super::frame::{Frame, ParsedFrame};
use super::io::poll::{Poll, TOKEN_MAX, Watch};
use super::io::port::LinkPort;
use super::io::udp::Endpoints;
use super::io::wake;
use super::relay::{RelayReceiver, RelaySender};
use super::shared::Shared;
use vsnoop_link::forwarding::{DropReason, ForwardingDecision, Location, Scope};
use vsnoop_link::introduction::Label;

/// An order of the control thread. `session` numbers are its own, never used twice.
pub enum Order {
    /// A session is there.
    Install {
        peer: usize,
        session: u64,
        sender: Box<SessionSender>,
    },
    /// Frames go by this session from now on.
    Use {
        peer: usize,
        session: u64,
    },
    /// A session is over; what waits in it is dropped.
    Retire {
        peer: usize,
        session: u64,
    },
    /// The peer has no session: frames are dropped.
    Down {
        peer: usize,
    },
    Address {
        peer: usize,
        session: u64,
        ends: Endpoints,
    },
    /// The longest datagram for the path.
    Limit {
        peer: usize,
        session: u64,
        bytes: usize,
    },
    /// Measurements of the path: the share of datagrams lost, its rate.
    Path {
        peer: usize,
        session: u64,
        loss: f64,
        bytes_per_s: Option<u64>,
        /// Many datagrams may leave with one system call.
        gso: bool,
    },
    /// Sends an item of the session itself, padded to `pad_to` bytes of datagram; to `to`, if that
    /// is not the session's address.
    Message {
        peer: usize,
        session: u64,
        item: Vec<u8>,
        pad_to: usize,
        to: Option<Endpoints>,
    },
    /// Frames of the peer `from`, relayed to this one, have this label from now on.
    Label {
        peer: usize,
        from: usize,
        label: Option<Label>,
    },
    /// The hub of the peer relays for it, or says that it does not.
    Apart {
        peer: usize,
        is_apart: bool,
    },
    /// Connections whose bytes a peer has not acknowledged for this time end from now on.
    DeadAfter(Duration),
    /// Says for each rule what becomes of its flows.
    Survey(SyncSender<Vec<FlowCounts>>),
    /// Compress by these rules.
    Policies(Policies),
    /// Read a port again that has failed.
    Watch {
        port: usize,
    },
    /// Go on with these ports and peers.
    Reload {
        shared: Arc<Shared>,
        done: SyncSender<()>,
    },
    Stop,
}

/// Bounds how long one port keeps the thread from the others.
const BATCHES_PER_PASS: usize = 8;
/// Without options: the MSS counts them as payload.
const TCP_HEADER_BYTES: usize = 20;
/// A flow that was silent for longer is not counted.
const IN_USE_NS: u64 = 10_000_000_000;
const ORDERS: u64 = TOKEN_MAX;
const RELAYED: u64 = TOKEN_MAX - 1;
/// First token of sockets of sessions, each with its peer's slot in the lowest bits. The token of a
/// port is its index, that of a divert tap `DIVERT_TAPS` and its index.
const SESSIONS: u64 = 1 << 32;
/// Slots of peers: [`Location::Peer`] has 16 bits.
const MOST_PEERS: u64 = 1 << 16;
const DIVERT_TAPS: u64 = 1 << 31;

/// Where frames are read.
#[derive(Clone, Copy)]
enum FrameSource {
    Port(usize),
    DivertTap(usize),
}

/// Ports and divert taps that this pair reads, by their tokens.
fn sources(shared: &Shared) -> HashMap<u64, Arc<LinkPort>> {
    let ports = shared.all_ports().map(|(slot, port)| (slot, port, 0));
    let taps = shared.divert_taps.iter().flat_map(DivertTaps::all);
    let taps = taps.map(|(slot, tap)| (slot, &tap.port, DIVERT_TAPS));
    let read = ports.chain(taps).filter(|(slot, port, _)| shared.reads(*slot, port));
    read.map(|(slot, port, first)| (first + slot as u64, Arc::clone(&port.port))).collect()
}

/// Orders and frames of other threads.
pub struct Inputs {
    pub orders: wake::Receiver<Order>,
    /// Frames from threads of all pairs, for peers that this one serves.
    pub relayed: RelayReceiver,
}

pub struct Egress {
    shared: Arc<Shared>,
    /// Ports and divert taps that it reads, by epoll token.
    sources: HashMap<u64, Arc<LinkPort>>,
    inputs: Inputs,
    /// For peers that other pairs serve.
    relay: RelaySender,
    events: wake::Sender<ControlEvent>,
    watch: Watch,
    senders: Senders,
    /// Whether frames are merged for a peer with an ordered transport.
    any_ordered: bool,
    policies: Policies,
    buffer: BatchBuffer,
    scratch: Vec<u8>,
    /// A SYN with another MSS.
    syn: Vec<u8>,
    /// Number of session sockets that have had a token.
    next_token: u64,
    /// Frames that were read since [`take_count`](Self::take_count).
    frames: usize,
}

impl Egress {
    pub fn new(
        shared: Arc<Shared>,
        inputs: Inputs,
        relay: RelaySender,
        events: wake::Sender<ControlEvent>,
        policies: Policies,
        watch: Watch,
    ) -> std::io::Result<Self> {
        watch.watch(&inputs.orders, ORDERS)?;
        watch.watch(&inputs.relayed, RELAYED)?;
        let senders = Senders::new(shared.peers.len());
        let sources = sources(&shared);
        for (token, port) in &sources {
            watch.watch(port, *token)?;
        }
        Ok(Self {
            sources,
            shared,
            inputs,
            relay,
            events,
            watch,
            senders,
            any_ordered: false,
            policies,
            buffer: BatchBuffer::default(),
            scratch: Vec::new(),
            syn: Vec::new(),
            next_token: 0,
            frames: 0,
        })
    }

    /// The epoll of a thread with this half alone.
    pub fn poll(&self) -> Arc<Poll> {
        self.watch.own()
    }

    /// Serves the source, socket or queue of orders with this token, which is ready; `false`: to
    /// stop.
    pub fn handle(&mut self, token: u64) -> bool {
        match token {
            ORDERS => return self.obey(),
            RELAYED => self.relay(),
            token if token < DIVERT_TAPS => {
                self.read(FrameSource::Port(token as usize), BATCHES_PER_PASS)
            }
            token if token < SESSIONS => {
                self.read(FrameSource::DivertTap((token - DIVERT_TAPS) as usize), BATCHES_PER_PASS);
            }
            token => self.session_ready(token),
        }
        true
    }

    /// Number of frames that were read since the last call.
    pub fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.frames)
    }

    /// Reads a few batches of frames from a port or divert tap.
    fn read(&mut self, source: FrameSource, batches: usize) {
        // Taken out, so that its frames can be handed on by reference.
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..batches {
            let left = {
                let found = match source {
                    FrameSource::Port(slot) => self.shared.port(slot),
                    FrameSource::DivertTap(slot) => {
                        let divert_tap =
                            self.shared.divert_taps.as_ref().and_then(|all| all.tap(slot));
                        divert_tap.map(|divert_tap| &divert_tap.port)
                    }
                };
                let Some(CountedPort { port, stats, .. }) = found else { break };
                let own = port.is_interface().then_some(&*self.shared.own);
                let left = buffer.fill(port, stats, &self.shared.stats, own);
                if let ReadEnd::Failed(error) = &left
                    && !port.is_of_state(error)
                {
                    // It would be told again and again. The control thread has it watched again.
                    self.watch.forget(port.as_fd());
                }
                left
            };
            self.batch(source, &buffer);
            match left {
                ReadEnd::More => {}
                ReadEnd::Nothing => break,
                ReadEnd::Failed(error) => {
                    let failed = match source {
                        FrameSource::Port(port) => ControlEvent::PortFailed { port, error },
                        FrameSource::DivertTap(divert_tap) => {
                            ControlEvent::DivertTapFailed { divert_tap, error }
                        }
                    };
                    let _ = self.events.send(failed);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    fn batch(&mut self, source: FrameSource, buffer: &BatchBuffer) {
        if buffer.is_empty() {
            return;
        }
        self.frames += buffer.len();
        let now_ns = self.shared.now_ns();
        if self.policies.any() || self.any_ordered {
            let mut merger = Merger::new();
            for ParsedFrame { offload, headers, bytes } in buffer.frames() {
                merger.push_parsed(offload, headers, bytes, &mut |merged| {
                    self.hand_on(source, Frame::of(&merged), now_ns);
                });
            }
            merger.flush(&mut |merged| self.hand_on(source, Frame::of(&merged), now_ns));
        } else {
            for ParsedFrame { offload, headers, bytes } in buffer.frames() {
                self.hand_on(source, Frame::parsed(offload, headers, &[bytes]), now_ns);
            }
        }
        self.flush(now_ns);
    }

    /// Sends what other threads have for peers that this one serves.
    fn relay(&mut self) {
        let now_ns = self.shared.now_ns();
        let frames: Vec<_> = self.inputs.relayed.drain().collect();
        self.frames += frames.len();
        for relayed in &frames {
            let part = [&relayed.bytes[..]];
            let from = relayed.source.checked_sub(FIRST_RELAYED);
            for to in relayed.to.iter().map(|to| usize::from(*to)) {
                let label = from.and_then(|from| Some(self.senders.get(to)?.label_of(from)));
                let frame = Frame::parsed(relayed.offload, relayed.headers, &part);
                let frame = frame.by(relayed.way).labelled(label.unwrap_or(0));
                self.send_to_peer(relayed.source, to, &frame, now_ns);
            }
        }
        self.flush(now_ns);
    }

    /// Sends what waits for the end of a batch.
    fn flush(&mut self, now_ns: u64) {
        self.senders.for_each_used(&self.shared.peers, |_, sender, stats| {
            sender.flush(SendContext { udp: &self.shared.udp, stats, now_ns });
        });
        self.relay.flush();
        self.look_after();
    }

    fn hand_on(&mut self, source: FrameSource, frame: Frame<'_>, now_ns: u64) {
        match source {
            FrameSource::Port(port) => self.forward(port, &frame, now_ns),
            FrameSource::DivertTap(divert_tap) => {
                self.divert(divert_tap, &frame.by(Way::Diverted), now_ns)
            }
        }
    }

    /// A frame that no hook sent, the host's own noise, goes nowhere.
    fn divert(&mut self, divert_tap: usize, frame: &Frame<'_>, now_ns: u64) {
        let divert_taps = self.shared.divert_taps.as_ref();
        if let Some(peer) =
            divert_taps.and_then(|divert_taps| divert_taps.peer_of(divert_tap, frame))
        {
            self.hand_to_peer(FIRST_DIVERT_TAP + divert_tap, peer, frame, now_ns);
        }
    }

    fn forward(&mut self, from: usize, frame: &Frame<'_>, now_ns: u64) {
        if !self.shared.port(from).is_some_and(|port| port.allows(frame)) {
            return;
        }
        let location = Location::Port(from as u16);
        let decision = self.shared.table.forward(frame.start(), frame.bytes, location, now_ns);
        match decision {
            ForwardingDecision::To(to) => self.hand_to(from, self.next_hop(to), frame, now_ns),
            ForwardingDecision::Both(a, b) => {
                let (a, b) = (self.next_hop(a), self.next_hop(b));
                self.hand_to(from, a, frame, now_ns);
                if a != b {
                    self.hand_to(from, b, frame, now_ns);
                }
            }
            ForwardingDecision::Flood(scope) => self.flood(from, &scope, frame, now_ns),
            ForwardingDecision::Drop(DropReason::TooMany) => self.shared.count_too_many(from),
            ForwardingDecision::Drop(reason) => self.shared.stats.count_drop(reason),
        }
    }

    fn flood(&mut self, from: usize, scope: &Scope, frame: &Frame<'_>, now_ns: u64) {
        for (slot, port) in self.shared.all_ports() {
            if from != slot && scope.includes(Location::Port(slot as u16)) {
                port.write(frame);
            }
        }
        if *scope == Scope::Ports {
            self.shared.count_flood(from);
        }
        // A hub sends it to all peers behind it, also those with a direct path: once.
        let (mut hubs, mut others) = (Vec::new(), Vec::new());
        for peer in 0..self.senders.len() {
            if !scope.includes(Location::Peer(peer as u16)) {
                continue;
            }
            // There is a direct path, and the hub does not stand in for it.
            let is_alone =
                self.senders.get(peer).is_some_and(PeerSender::is_apart) && self.is_up(peer);
            let hub = self.shared.hub_of(peer).filter(|hub| self.is_up(*hub) && !is_alone);
            match hub {
                None if self.shared.serves(peer) => self.send_to_peer(from, peer, frame, now_ns),
                None => others.push(peer as u16),
                Some(hub) if scope.includes(Location::Peer(hub as u16)) => {}
                Some(hub) if hubs.contains(&hub) => {}
                Some(hub) => hubs.push(hub),
            }
        }
        for hub in hubs {
            self.hand_to_peer(from, hub, frame, now_ns);
        }
        self.hand_over(from, others, frame);
    }

    fn is_up(&self, peer: usize) -> bool {
        self.shared.is_up(peer)
    }

    /// A peer behind a hub is reached by the hub while there is no direct path.
    fn next_hop(&self, to: Location) -> Location {
        let Location::Peer(peer) = to else { return to };
        let peer = usize::from(peer);
        let hub = self.shared.hub_of(peer).filter(|_| !self.is_up(peer));
        hub.map_or(to, |hub| Location::Peer(hub as u16))
    }

    fn hand_to(&mut self, from: usize, to: Location, frame: &Frame<'_>, now_ns: u64) {
        match to {
            Location::Peer(peer) => self.hand_to_peer(from, usize::from(peer), frame, now_ns),
            Location::Port(port) => self.shared.write_to_port(usize::from(port), frame),
        }
    }

    fn hand_to_peer(&mut self, source: usize, peer: usize, frame: &Frame<'_>, now_ns: u64) {
        if self.shared.serves(peer) {
            self.send_to_peer(source, peer, frame, now_ns);
        } else {
            self.hand_over(source, vec![peer as u16], frame);
        }
    }

    /// Hands a frame to the pairs that serve these peers.
    fn hand_over(&mut self, source: usize, peers: Vec<u16>, frame: &Frame<'_>) {
        for peer in self.relay.push(source, peers, frame) {
            if let Some(stats) = self.shared.peers.get(usize::from(peer)) {
                stats.dropped_full.add(1, frame.bytes as u64);
            }
        }
    }

    /// Sends a frame to a peer that this pair serves. The MSS of a SYN is lowered, so that TCP
    /// makes no frames that are longer than a datagram to this peer.
    fn send_to_peer(&mut self, source: usize, peer: usize, frame: &Frame<'_>, now_ns: u64) {
        let Some(limit_bytes) = self.shared.frame_limit(peer).filter(|_| frame.is_syn()) else {
            return self.send(source, peer, frame, now_ns);
        };
        let mut syn = std::mem::take(&mut self.syn);
        frame.gather_into(&mut syn);
        if let Some(headers) = &frame.headers {
            let mss = limit_bytes.saturating_sub(usize::from(headers.l4) + TCP_HEADER_BYTES);
            mss::clamp(&frame.offload, headers, &mut syn, mss.min(u16::MAX.into()) as u16);
        }
        let part = [&syn[..]];
        let lowered = Frame::parsed(frame.offload, frame.headers, &part).labelled(frame.label);
        self.send(source, peer, &lowered.by(frame.way), now_ns);
        self.syn = syn;
    }

    fn send(&mut self, source: usize, peer: usize, frame: &Frame<'_>, now_ns: u64) {
        let (Some(sender), Some(stats)) = (self.senders.get_mut(peer), self.shared.peers.get(peer))
        else {
            return;
        };
        let compression = self.policies.of(peer, source, frame);
        let context = SendContext { udp: &self.shared.udp, stats, now_ns };
        sender.send(context, frame, &compression, &mut self.scratch);
    }

    /// The socket of a session is writable, or that of a connection has something to read.
    fn session_ready(&mut self, token: u64) {
        let now_ns = self.shared.now_ns();
        let peer = ((token - SESSIONS) % MOST_PEERS) as usize;
        if let (Some(sender), Some(stats)) =
            (self.senders.get_mut(peer), self.shared.peers.get(peer))
        {
            sender.go_on(token, SendContext { udp: &self.shared.udp, stats, now_ns });
        }
        self.look_after();
    }

    /// Follows what sending did to the transports.
    fn look_after(&mut self) {
        self.senders.for_each_used(&self.shared.peers, |peer, sender, stats| {
            sender.look_after(&self.watch, stats, &mut |session, fault| {
                let _ = self.events.send(ControlEvent::Outgoing { peer, session, fault });
            });
        });
        self.senders.settle();
    }

    /// Goes on with these ports and peers. Sessions of peers that were removed are retired already.
    fn reload(&mut self, shared: Arc<Shared>) {
        let before = std::mem::replace(&mut self.sources, sources(&shared));
        for (token, port) in &before {
            if !self.sources.get(token).is_some_and(|now| Arc::ptr_eq(now, port)) {
                self.watch.forget(port.as_fd());
            }
        }
        for (token, port) in &self.sources {
            if before.get(token).is_some_and(|before| Arc::ptr_eq(before, port)) {
                continue;
            }
            if let Err(error) = self.watch.watch(port, *token) {
                let failed = match *token {
                    token if token < DIVERT_TAPS => {
                        ControlEvent::PortFailed { port: token as usize, error }
                    }
                    token => {
                        let divert_tap = (token - DIVERT_TAPS) as usize;
                        ControlEvent::DivertTapFailed { divert_tap, error }
                    }
                };
                let _ = self.events.send(failed);
            }
        }
        self.senders.resize(shared.peers.len());
        self.shared = shared;
    }

    /// Carries out the orders that wait; `false`: to stop.
    fn obey(&mut self) -> bool {
        let orders: Vec<_> = self.inputs.orders.drain().collect();
        let of_sessions = |order: &Order| {
            use Order::{Down, Reload, Retire, Use};
            matches!(order, Use { .. } | Down { .. } | Retire { .. } | Reload { .. })
        };
        let changes_sessions = orders.iter().any(of_sessions);
        for order in orders {
            match order {
                Order::Install { peer, session, sender } => self.install(peer, session, *sender),
                Order::Use { peer, session } => {
                    self.with_sender(peer, |of| of.use_session(session));
                }
                Order::Retire { peer, session } => {
                    if let Some(of) = self.senders.get_mut(peer) {
                        of.retire(session, &self.watch, &self.shared.peers[peer]);
                    }
                }
                Order::Down { peer } => self.with_sender(peer, PeerSender::down),
                Order::Address { peer, session, ends } => {
                    self.with_sender(peer, |of| of.set_address(session, ends));
                }
                Order::Limit { peer, session, bytes } => {
                    self.with_sender(peer, |of| of.set_limit(session, bytes));
                }
                Order::Path { peer, session, loss, bytes_per_s, gso } => {
                    self.with_sender(peer, |of| of.set_path(session, loss, bytes_per_s, gso));
                }
                Order::Message { peer, session, item, pad_to, to } => {
                    self.message(peer, session, &item, pad_to, to);
                }
                Order::Label { peer, from, label } => {
                    self.with_sender(peer, |of| of.set_label(from, label));
                }
                Order::Apart { peer, is_apart } => {
                    self.with_sender(peer, |of| of.set_apart(is_apart));
                }
                Order::DeadAfter(time) => self.senders.set_dead_after(time),
                Order::Survey(done) => {
                    // The requester may have given up.
                    let _ = done.try_send(self.survey());
                }
                Order::Policies(policies) => self.policies = policies,
                Order::Watch { port } => self.watch_again(port),
                Order::Reload { shared, done } => {
                    self.reload(shared);
                    // The requester may have given up.
                    let _ = done.try_send(());
                }
                Order::Stop => return false,
            }
        }
        if changes_sessions {
            self.any_ordered = self.senders.any_ordered();
            let shared = &self.shared;
            self.senders.for_each_used(&shared.peers, |peer, sender, _| {
                shared.set_up(peer, sender.is_up());
            });
        }
        self.look_after();
        true
    }

    /// Sends an item of the session itself.
    fn message(
        &mut self,
        peer: usize,
        session: u64,
        item: &[u8],
        pad_to: usize,
        to: Option<Endpoints>,
    ) {
        let shared = &self.shared;
        let (udp, stats) = (&shared.udp, &shared.peers[peer]);
        let context = SendContext { udp, stats, now_ns: shared.now_ns() };
        if let Some(of) = self.senders.get_mut(peer) {
            of.message(session, context, item, pad_to, to);
        }
    }

    fn install(&mut self, peer: usize, session: u64, sender: SessionSender) {
        let mut token = || {
            self.next_token += 1;
            SESSIONS + self.next_token * MOST_PEERS + peer as u64
        };
        let Some(of) = self.senders.get_mut(peer) else { return };
        let udp = &self.shared.udp;
        if let Err(error) = of.install(session, sender, udp, &self.watch, &mut token) {
            let fault = Fault::Broken(error);
            let _ = self.events.send(ControlEvent::Outgoing { peer, session, fault });
        }
    }

    /// Says for each rule what becomes of its flows.
    fn survey(&self) -> Vec<FlowCounts> {
        let since_ns = self.shared.now_ns().saturating_sub(IN_USE_NS);
        let decision = |peer: usize, flow, policy: &_| {
            let (seen_ns, decision) = self.senders.get(peer)?.decision(flow, policy)?;
            (seen_ns >= since_ns).then_some(decision)
        };
        self.policies.survey(decision)
    }

    /// Reads a port that has failed.
    fn watch_again(&mut self, port: usize) {
        let Some(found) = self.shared.port(port) else { return };
        if !self.shared.reads(port, found) {
            return;
        }
        // It may have failed, and been forgotten, more than once.
        self.watch.forget(found.port.as_fd());
        if let Err(error) = self.watch.watch(&found.port, port as u64) {
            let _ = self.events.send(ControlEvent::PortFailed { port, error });
        }
    }

    fn with_sender(&mut self, peer: usize, change: impl FnOnce(&mut PeerSender)) {
        if let Some(sender) = self.senders.get_mut(peer) {
            change(sender);
        }
    }
}
