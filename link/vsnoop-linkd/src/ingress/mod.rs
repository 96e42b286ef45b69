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
mod token;

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
use self::token::{ConnectionNumber, IngressToken};
use crate::frames::frame::{Frame, Origin, ReceivedFrame};
use crate::io::poll::{Poll, Token, Watch};
use crate::io::wake;
use crate::threads::event::{ControlEvent, MessageKind, ReceivedMessage};
use crate::threads::handoff::HandoffSender;
use crate::threads::pairs::SessionNumber;
use crate::threads::shared::Shared;
use vsnoop_link::forwarding::{ForwardingDecision, Location, Scope};
use vsnoop_link::session::SessionId;
use vsnoop_link::slots::{FrameSource, PeerSlot};
use vsnoop_link::wire::item::Way;

/// An order of the control thread.
pub enum Order {
    /// Records with this number belong to the session.
    Datagrams {
        peer: PeerSlot,
        session: SessionId,
        number: SessionNumber,
        opened: Box<DatagramSession>,
    },
    /// These data connections belong to the session.
    Connections {
        peer: PeerSlot,
        session: SessionId,
        connections: Vec<ConnectionReceiver>,
    },
    Retire {
        session: SessionId,
    },
    /// A reload has changed ports or peers.
    Reload {
        shared: Arc<Shared>,
        done: SyncSender<()>,
    },
    Stop,
}

/// Bounds how long the socket occupies the thread before connections and orders.
const BATCHES_PER_PASS: usize = 16;

/// A data connection and the session that it belongs to.
struct InstalledConnection {
    peer: PeerSlot,
    session: SessionId,
    connection: ConnectionReceiver,
}

pub struct Ingress {
    shared: Arc<Shared>,
    orders: wake::Receiver<Order>,
    reports: Reports,
    watch: Watch,
    datagrams: DatagramReceiver,
    connections: HashMap<ConnectionNumber, InstalledConnection>,
    gather: Gather,
    handoff: HandoffSender,
    rounds: Rounds,
    next_round: EventFd,
    next_connection: ConnectionNumber,
    /// Frames since the last [`Self::take_count`].
    frames: usize,
}

impl Ingress {
    pub fn new(
        shared: Arc<Shared>,
        orders: wake::Receiver<Order>,
        events: wake::Sender<ControlEvent>,
        handoff: HandoffSender,
        watch: Watch,
    ) -> std::io::Result<Self> {
        watch.watch(&orders, IngressToken::Orders.encode())?;
        watch.watch(&**shared.receiver(), IngressToken::Datagrams.encode())?;
        let next_round = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        watch.watch(&next_round, IngressToken::NextRound.encode())?;
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
            handoff,
            rounds,
            next_round,
            next_connection: ConnectionNumber::default(),
            frames: 0,
        })
    }

    /// The epoll of a thread with this half alone.
    pub fn poll(&self) -> Arc<Poll> {
        self.watch.own()
    }

    /// Handles a descriptor that is ready. Returns `false` if the thread is to stop.
    pub fn handle_token(&mut self, token: Token) -> bool {
        match IngressToken::decode(token) {
            None => {}
            Some(IngressToken::Orders) => return self.obey_orders(),
            Some(IngressToken::NextRound) => self.receive_waiting(),
            // It is handled in the next round.
            Some(token) if self.rounds.waits(token) => {}
            Some(token) => self.receive_from(token),
        }
        true
    }

    /// Begins a round, which lasts until the next call.
    pub fn begin_round(&mut self) {
        self.rounds.begin_round();
    }

    /// Handles what the last round has left.
    fn receive_waiting(&mut self) {
        // The eventfd may not have been written since.
        let _ = self.next_round.read();
        self.rounds.take_waiting().into_iter().for_each(|token| self.receive_from(token));
    }

    fn receive_from(&mut self, token: IngressToken) {
        match token {
            IngressToken::Datagrams => self.receive_datagrams(),
            IngressToken::Connection(number) => self.receive_by_connection(number),
            IngressToken::Orders | IngressToken::NextRound => {}
        }
    }

    fn wait_for_next_round(&mut self, token: IngressToken) {
        self.rounds.wait_for_round(token);
        // It fails only if the counter is full; then the eventfd is readable already.
        let _ = self.next_round.write(1);
    }

    /// Number of frames since the last call.
    pub fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.frames)
    }

    fn receive_datagrams(&mut self) {
        let (shared, taken, handoff) = (&self.shared, &mut self.frames, &mut self.handoff);
        for _ in 0..BATCHES_PER_PASS {
            if self.rounds.datagrams.is_used_up() {
                break;
            }
            let mut to = |frames: &mut dyn Iterator<Item = ReceivedFrame<'_>>| {
                deliver_batch(shared, handoff, frames.inspect(|_| *taken += 1));
            };
            let budget = &mut self.rounds.datagrams;
            match self.datagrams.receive_datagrams(shared, budget, &mut self.reports, &mut to) {
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
            self.wait_for_next_round(IngressToken::Datagrams);
        }
    }

    fn receive_by_connection(&mut self, number: ConnectionNumber) {
        let token = IngressToken::Connection(number);
        let Some(installed) = self.connections.get_mut(&number) else { return };
        let InstalledConnection { peer, session, ref mut connection } = *installed;
        if self.rounds.peer_budget(peer).is_used_up() {
            return self.wait_for_next_round(token);
        }
        let shared = &self.shared;
        let reports = &mut self.reports;
        let (gather, handoff) = (&mut self.gather, &mut self.handoff);
        let mut frames = 0;
        let mut receive = |item: connection::ReceivedItem<'_>| match item {
            connection::ReceivedItem::Frame(offload, way, frame) => {
                frames += 1;
                if gather.keep_frame(offload, way, frame) {
                    return;
                }
                deliver_gathered(shared, handoff, peer, gather);
                if !gather.keep_frame(offload, way, frame) {
                    let now_ns = shared.now_ns();
                    let from = Origin { peer, way, behind: None };
                    deliver_frame(shared, handoff, from, &Frame::whole(offload, &[frame]), now_ns);
                }
            }
            connection::ReceivedItem::Message(item) => {
                let kind = MessageKind::Session;
                let message =
                    ReceivedMessage { peer, session, kind, item: item.to_vec(), datagram: None };
                reports.report_message(message, &shared.peers[peer], shared.now_ns());
            }
        };
        let budget = self.rounds.peer_budget(peer);
        let result = connection.receive(budget, &shared.peers[peer], &mut receive);
        deliver_gathered(shared, handoff, peer, gather);
        self.frames += frames;
        let error = match result {
            Ok(Left::Nothing) => return,
            Ok(Left::Read) => return self.wait_for_next_round(token),
            Err(error) => error,
        };
        if let Some(installed) = self.connections.remove(&number) {
            self.watch.forget(installed.connection.as_fd());
        }
        self.reports.report_end(peer, session, &self.shared.peers[peer], error);
    }

    /// Carries out the orders in the channel. Returns `false` if the thread is to stop.
    fn obey_orders(&mut self) -> bool {
        let orders: Vec<_> = self.orders.drain().collect();
        for order in orders {
            match order {
                Order::Datagrams { peer, session, number, opened } => {
                    self.datagrams.install_session(&self.shared, peer, session, number, *opened);
                }
                Order::Connections { peer, session, connections } => {
                    for connection in connections {
                        let number = self.next_connection;
                        self.next_connection = number.next();
                        let token = IngressToken::Connection(number);
                        if let Err(error) = self.watch.watch(&connection, token.encode()) {
                            let stats = &self.shared.peers[peer];
                            self.reports.report_end(peer, session, stats, error.into());
                            continue;
                        }
                        let installed = InstalledConnection { peer, session, connection };
                        self.connections.insert(number, installed);
                        // TLS may have data that arrived with the end of the handshake.
                        self.receive_by_connection(number);
                    }
                }
                Order::Retire { session } => {
                    self.datagrams.retire_session(session);
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

fn deliver_gathered(
    shared: &Shared,
    handoff: &mut HandoffSender,
    peer: PeerSlot,
    gather: &mut Gather,
) {
    deliver_batch(shared, handoff, gather.frames(peer));
    gather.clear();
}

/// Passes on the frames of a batch; merges segments of a flow.
fn deliver_batch<'f>(
    shared: &Shared,
    handoff: &mut HandoffSender,
    frames: impl Iterator<Item = ReceivedFrame<'f>>,
) {
    let now_ns = shared.now_ns();
    let mut merger = Merger::new();
    let mut before = None;
    for ReceivedFrame { origin: from, offload, bytes } in frames {
        if let Some(before) = before.filter(|before| *before != from) {
            merger.flush(&mut |merged| {
                deliver_frame(shared, handoff, before, &Frame::from_merged(&merged), now_ns)
            });
        }
        before = Some(from);
        merger.push(offload, bytes, &mut |merged| {
            deliver_frame(shared, handoff, from, &Frame::from_merged(&merged), now_ns);
        });
    }
    if let Some(from) = before {
        merger.flush(&mut |merged| {
            deliver_frame(shared, handoff, from, &Frame::from_merged(&merged), now_ns)
        });
    }
    handoff.flush();
}

/// Writes a peer's frame to a port, or relays it to another peer.
fn deliver_to_location(
    shared: &Shared,
    handoff: &mut HandoffSender,
    from: PeerSlot,
    to: Location,
    frame: &Frame<'_>,
) {
    match to {
        Location::Port(port) => shared.write_to_port(port, frame),
        Location::Peer(peer) => relay_frame(shared, handoff, from, vec![peer], frame),
    }
}

/// Relays a peer's frame to others.
fn relay_frame(
    shared: &Shared,
    handoff: &mut HandoffSender,
    from: PeerSlot,
    to: Vec<PeerSlot>,
    frame: &Frame<'_>,
) {
    if !handoff.push(FrameSource::Peer(from), to, frame).is_empty() {
        shared.peers[from].dropped_relay.add(1, frame.bytes as u64);
    }
}

/// Writes a peer's frame to its port, or to several, and relays it to peers; a diverted one goes to
/// the host's divert tap.
fn deliver_frame(
    shared: &Shared,
    handoff: &mut HandoffSender,
    from: Origin,
    frame: &Frame<'_>,
    now_ns: u64,
) {
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
            Some(divert_taps) => divert_taps.enter_frame(peer, frame),
            None => stats.refused_in.add(1),
        }
        return;
    }
    let (location, start) = (Location::Peer(behind.unwrap_or(peer)), frame.start());
    match shared.table.forward_frame(start, frame.bytes, location, now_ns) {
        ForwardingDecision::To(to) => deliver_to_location(shared, handoff, peer, to, frame),
        ForwardingDecision::Both(a, b) => {
            deliver_to_location(shared, handoff, peer, a, frame);
            deliver_to_location(shared, handoff, peer, b, frame);
        }
        ForwardingDecision::Flood(scope) => {
            for (slot, port) in shared.all_ports() {
                if scope.includes(Location::Port(slot)) {
                    port.write(frame);
                }
            }
            if scope == Scope::Ports {
                stats.dropped_flood.add(1, frame.bytes as u64);
            }
            let others = shared.table.read().find_relays(location, &scope);
            relay_frame(shared, handoff, peer, others, frame);
        }
        ForwardingDecision::Drop(reason) => shared.stats.count_drop(reason),
    }
}
