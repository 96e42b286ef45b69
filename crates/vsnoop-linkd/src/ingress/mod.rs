//! The half that carries frames from peers to local ports.
//!
//! Only this half reads from the network. It opens records in place, and decompresses into a
//! scratch buffer; then it merges segments of one flow, from any number of datagrams, into
//! super-packets by reference, and writes each to its port with one system call.
//!
//! The thread works in rounds. A round handles everything that one `epoll_wait` has returned. In
//! each round a peer has a budget ([`budget`]), in bytes after decompression. What is beyond the
//! budget stays in the connection's buffer or the inbox, and comes first in the next round; an
//! eventfd makes the next `epoll_wait` return at once.

mod budget;
pub mod connection;
pub mod datagrams;
mod gather;
mod installed;
mod reports;
pub mod session;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use nix::sys::eventfd::{EfdFlags, EventFd};
use vsnoop_packet::offload::merge::Merger;

use self::budget::Rounds;
use self::connection::{ConnectionReceiver, Left};
use self::datagrams::DatagramReceiver;
use self::gather::Gather;
use self::reports::Reports;
use self::session::DatagramSession;
use super::compression_policy::FIRST_RELAYED;
use super::event::{ControlEvent, MessageKind, ReceivedMessage};
use super::frame::{Frame, Origin, ReceivedFrame};
use super::io::poll::{Poll, TOKEN_MAX, Watch};
use super::io::wake;
use super::relay::RelaySender;
use super::shared::Shared;
use vsnoop_link::forwarding::{ForwardingDecision, Location, Scope};
use vsnoop_link::wire::item::Way;

/// An order of the control thread.
pub enum Order {
    /// Records with the index `index` belong to the session.
    Datagrams {
        peer: usize,
        session: u64,
        index: u32,
        opened: Box<DatagramSession>,
    },
    /// These data connections belong to the session.
    Connections {
        peer: usize,
        session: u64,
        connections: Vec<ConnectionReceiver>,
    },
    Retire {
        session: u64,
    },
    /// A reload has changed ports or peers.
    Reload {
        shared: Arc<Shared>,
        done: SyncSender<()>,
    },
    Stop,
}

const ORDERS: u64 = TOKEN_MAX;
const UDP: u64 = TOKEN_MAX - 1;
/// Token of the eventfd that is readable while something waits for the next round.
const NEXT_ROUND: u64 = TOKEN_MAX - 2;
/// Bounds how long the socket occupies the thread before connections and orders.
const BATCHES_PER_PASS: usize = 16;

/// A data connection and the session that it belongs to.
struct InstalledConnection {
    peer: usize,
    session: u64,
    connection: ConnectionReceiver,
}

pub struct Ingress {
    shared: Arc<Shared>,
    orders: wake::Receiver<Order>,
    reports: Reports,
    watch: Watch,
    datagrams: DatagramReceiver,
    /// Keyed by token.
    connections: HashMap<u64, InstalledConnection>,
    gather: Gather,
    relay: RelaySender,
    rounds: Rounds,
    next_round: EventFd,
    next_token: u64,
    /// Frames since the last [`Self::take_count`].
    frames: usize,
}

impl Ingress {
    pub fn new(
        shared: Arc<Shared>,
        orders: wake::Receiver<Order>,
        events: wake::Sender<ControlEvent>,
        relay: RelaySender,
        watch: Watch,
    ) -> std::io::Result<Self> {
        watch.watch(&orders, ORDERS)?;
        watch.watch(&**shared.receiver(), UDP)?;
        let next_round = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        watch.watch(&next_round, NEXT_ROUND)?;
        let rounds = Rounds::new(shared.peers.len());
        let datagrams = DatagramReceiver::default();
        let connections = HashMap::new();
        let gather = Gather::default();
        let reports = Reports::new(events, shared.peers.len());
        Ok(Self {
            shared,
            orders,
            reports,
            watch,
            datagrams,
            connections,
            gather,
            relay,
            rounds,
            next_round,
            next_token: 0,
            frames: 0,
        })
    }

    /// The epoll of a thread with this half alone.
    pub fn poll(&self) -> Arc<Poll> {
        self.watch.own()
    }

    /// Handles a descriptor that is ready. Returns `false` if the thread is to stop.
    pub fn handle(&mut self, token: u64) -> bool {
        match token {
            ORDERS => return self.obey(),
            // A connection that waits for the next round is handled there.
            UDP if !self.rounds.waits(UDP) => self.udp(),
            UDP => {}
            NEXT_ROUND => self.go_on(),
            token if !self.rounds.waits(token) => self.connection_ready(token),
            _ => {}
        }
        true
    }

    /// Begins a round, which lasts until the next call.
    pub fn begin_round(&mut self) {
        self.rounds.begin();
    }

    /// Handles what the last round has left.
    fn go_on(&mut self) {
        // The eventfd may not have been written since.
        let _ = self.next_round.read();
        for token in self.rounds.take_waiting() {
            match token {
                UDP => self.udp(),
                token => self.connection_ready(token),
            }
        }
    }

    fn wait_for_next_round(&mut self, token: u64) {
        self.rounds.wait(token);
        // It fails only if the counter is full; then the eventfd is readable already.
        let _ = self.next_round.write(1);
    }

    /// Number of frames since the last call.
    pub fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.frames)
    }

    fn udp(&mut self) {
        let (shared, taken, relay) = (&self.shared, &mut self.frames, &mut self.relay);
        for _ in 0..BATCHES_PER_PASS {
            if self.rounds.datagrams.is_used_up() {
                break;
            }
            let mut to = |frames: &mut dyn Iterator<Item = ReceivedFrame<'_>>| {
                hand_on(shared, relay, frames.inspect(|_| *taken += 1));
            };
            let budget = &mut self.rounds.datagrams;
            match self.datagrams.receive(shared, budget, &mut self.reports, &mut to) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    // An ICMP error for an earlier datagram. The session's probes find out.
                    tracing::debug!("receiving datagrams: {error}");
                    return;
                }
            }
        }
        // epoll is level-triggered: it reports what the socket still has.
        if self.datagrams.has_left() {
            self.wait_for_next_round(UDP);
        }
    }

    fn connection_ready(&mut self, token: u64) {
        let Some(installed) = self.connections.get_mut(&token) else { return };
        let InstalledConnection { peer, session, ref mut connection } = *installed;
        if self.rounds.budget(peer).is_used_up() {
            return self.wait_for_next_round(token);
        }
        let shared = &self.shared;
        let reports = &mut self.reports;
        let (gather, relay) = (&mut self.gather, &mut self.relay);
        let mut frames = 0;
        let mut receive = |item: connection::ReceivedItem<'_>| match item {
            connection::ReceivedItem::Frame(offload, way, frame) => {
                frames += 1;
                if gather.keep(offload, way, frame) {
                    return;
                }
                hand_on_gathered(shared, relay, peer, gather);
                if !gather.keep(offload, way, frame) {
                    let now_ns = shared.now_ns();
                    let from = Origin { peer, way, behind: None };
                    deliver(shared, relay, from, &Frame::whole(offload, &[frame]), now_ns);
                }
            }
            connection::ReceivedItem::Message(item) => {
                let kind = MessageKind::Session;
                let message =
                    ReceivedMessage { peer, session, kind, item: item.to_vec(), datagram: None };
                reports.message(message, &shared.peers[peer], shared.now_ns());
            }
        };
        let budget = self.rounds.budget(peer);
        let result = connection.receive(budget, &shared.peers[peer], &mut receive);
        hand_on_gathered(shared, relay, peer, gather);
        self.frames += frames;
        let error = match result {
            Ok(Left::Nothing) => return,
            Ok(Left::Read) => return self.wait_for_next_round(token),
            Err(error) => error,
        };
        if let Some(installed) = self.connections.remove(&token) {
            self.watch.forget(installed.connection.as_fd());
        }
        self.reports.ended(peer, session, &self.shared.peers[peer], error);
    }

    /// Carries out the orders in the channel. Returns `false` if the thread is to stop.
    fn obey(&mut self) -> bool {
        let orders: Vec<_> = self.orders.drain().collect();
        for order in orders {
            match order {
                Order::Datagrams { peer, session, index, opened } => {
                    self.datagrams.install(&self.shared, peer, session, index, *opened);
                }
                Order::Connections { peer, session, connections } => {
                    for connection in connections {
                        let token = self.next_token;
                        self.next_token += 1;
                        if let Err(error) = self.watch.watch(&connection, token) {
                            let stats = &self.shared.peers[peer];
                            self.reports.ended(peer, session, stats, error.into());
                            continue;
                        }
                        let installed = InstalledConnection { peer, session, connection };
                        self.connections.insert(token, installed);
                        // TLS may have data that arrived with the end of the handshake.
                        self.connection_ready(token);
                    }
                }
                Order::Retire { session } => {
                    self.datagrams.retire(session);
                    let watch = &self.watch;
                    self.connections.retain(|_, installed| {
                        let stays = installed.session != session;
                        if !stays {
                            watch.forget(installed.connection.as_fd());
                        }
                        stays
                    });
                }
                Order::Reload { shared, done } => {
                    self.rounds.set_peers(shared.peers.len());
                    self.reports.set_peers(shared.peers.len());
                    self.shared = shared;
                    self.datagrams.note_hubs(&self.shared);
                    // The requester may have given up.
                    let _ = done.try_send(());
                }
                Order::Stop => return false,
            }
        }
        true
    }
}

fn hand_on_gathered(shared: &Shared, relay: &mut RelaySender, peer: usize, gather: &mut Gather) {
    hand_on(shared, relay, gather.frames(peer));
    gather.clear();
}

/// Passes on the frames of a batch; merges segments of a flow.
fn hand_on<'f>(
    shared: &Shared,
    relay: &mut RelaySender,
    frames: impl Iterator<Item = ReceivedFrame<'f>>,
) {
    let now_ns = shared.now_ns();
    let mut merger = Merger::new();
    let mut before = None;
    for ReceivedFrame { origin: from, offload, bytes } in frames {
        if let Some(before) = before.filter(|before| *before != from) {
            merger.flush(&mut |merged| deliver(shared, relay, before, &Frame::of(&merged), now_ns));
        }
        before = Some(from);
        merger.push(offload, bytes, &mut |merged| {
            deliver(shared, relay, from, &Frame::of(&merged), now_ns);
        });
    }
    if let Some(from) = before {
        merger.flush(&mut |merged| deliver(shared, relay, from, &Frame::of(&merged), now_ns));
    }
    relay.flush();
}

/// Writes a peer's frame to a port, or relays it to another peer.
fn deliver_to(
    shared: &Shared,
    relay: &mut RelaySender,
    from: usize,
    to: Location,
    frame: &Frame<'_>,
) {
    match to {
        Location::Port(port) => shared.write_to_port(usize::from(port), frame),
        Location::Peer(peer) => pass(shared, relay, from, vec![peer], frame),
    }
}

/// Relays a peer's frame to others.
fn pass(shared: &Shared, relay: &mut RelaySender, from: usize, to: Vec<u16>, frame: &Frame<'_>) {
    if !relay.push(FIRST_RELAYED + from, to, frame).is_empty() {
        shared.peers[from].dropped_relay.add(1, frame.bytes as u64);
    }
}

/// Writes a peer's frame to its port, or to several, and relays it to peers; a diverted one goes to
/// the host's divert tap.
fn deliver(shared: &Shared, relay: &mut RelaySender, from: Origin, frame: &Frame<'_>, now_ns: u64) {
    let Origin { peer, way, behind } = from;
    if frame.start().len() < 14 {
        shared.stats.malformed_frames.add(1);
        return;
    }
    let stats = &shared.peers[peer];
    stats.frames_in.add(1);
    stats.bytes_in.add(frame.bytes as u64);
    if way == Way::Diverted {
        match &shared.divert_taps {
            Some(divert_taps) => divert_taps.enter(peer, frame),
            None => stats.refused_in.add(1),
        }
        return;
    }
    let (location, start) = (Location::Peer(behind.unwrap_or(peer) as u16), frame.start());
    match shared.table.forward(start, frame.bytes, location, now_ns) {
        ForwardingDecision::To(to) => deliver_to(shared, relay, peer, to, frame),
        ForwardingDecision::Both(a, b) => {
            deliver_to(shared, relay, peer, a, frame);
            deliver_to(shared, relay, peer, b, frame);
        }
        ForwardingDecision::Flood(scope) => {
            for (slot, port) in shared.all_ports() {
                if scope.includes(Location::Port(slot as u16)) {
                    port.write(frame);
                }
            }
            if scope == Scope::Ports {
                stats.dropped_flood.add(1, frame.bytes as u64);
            }
            let others = shared.table.read().relays(location, &scope);
            pass(shared, relay, peer, others, frame);
        }
        ForwardingDecision::Drop(reason) => shared.stats.count_drop(reason),
    }
}
