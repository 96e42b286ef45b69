//! Sends the frames for one peer, under the current one of its sessions.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;

use super::super::compression_policy::Compression;
use super::super::config::OuterConfig;
use super::super::fault::Fault;
use super::super::frame::Frame;
use super::super::io::poll::Watch;
use super::super::io::port::MAX_PARTS;
use super::super::io::udp::{Endpoints, UdpSocket};
use super::super::stats::PeerStats;
use super::connection::{ConnectionSender, Outgoing};
use super::datagrams::DatagramSender;
use super::pieces::pieces_of;
use super::send_context::SendContext;
use vsnoop_link::compress::{Decision, Policy};
use vsnoop_link::introduction::Label;
use vsnoop_link::queue::Classifier;
use vsnoop_link::wire::item::FrameHeader;

/// A data connection that is idle for this time carries a copy of the session's next message. NATs
/// and firewalls forget silent connections, many after a minute; and a connection that a router has
/// forgotten is noticed by its TCP before frames depend on it.
const KEEP_ALIVE_NS: u64 = 5_000_000_000;

/// Sends the frames and messages of one session.
pub enum SessionSender {
    Datagrams(Box<Datagrams>),
    Connections(Box<Connections>),
}

/// The sender of a session over UDP, and its socket in the thread's epoll.
pub struct Datagrams {
    sender: DatagramSender,
    token: u64,
    /// Whether the socket is watched for room, too.
    wants_room: bool,
}

impl Datagrams {
    pub fn new(sender: DatagramSender) -> Self {
        Self { sender, token: 0, wants_room: false }
    }

    /// Marks that its datagrams copy from the packets in them.
    pub fn set_outer(&mut self, outer: OuterConfig) {
        self.sender.set_outer(outer);
    }

    /// See [`DatagramSender::set_gso`].
    pub fn set_gso(&mut self, gso: bool) {
        self.sender.set_gso(gso);
    }
}

/// The data connections of a session over an ordered transport.
pub struct Connections {
    connections: Vec<DataConnection>,
    classifier: Classifier,
    broken: Option<io::Error>,
}

struct DataConnection {
    connection: ConnectionSender,
    /// Token of its socket in the thread's epoll.
    token: u64,
    /// Whether the socket is watched for room, too.
    wants_room: bool,
}

impl Connections {
    pub fn new(connections: Vec<ConnectionSender>) -> Self {
        let classifier = Classifier::new(connections.len());
        let unwatched = |connection| DataConnection { connection, token: 0, wants_room: false };
        let connections = connections.into_iter().map(unwatched).collect();
        Self { connections, classifier, broken: None }
    }

    /// The kernel ends a connection when the peer has not acknowledged its bytes for this time.
    pub fn set_dead_after(&self, time: Duration) {
        for DataConnection { connection, .. } in &self.connections {
            // If it is refused, probes find out that the peer does not answer.
            let _ = SockRef::from(connection).set_tcp_user_timeout(Some(time));
        }
    }

    /// Sends a frame on the connection of its flow; `false` if that connection has ended.
    ///
    /// On a slow connection a super-packet is split, so that a drop costs its flow less, and other
    /// flows wait for less.
    fn send(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) -> bool {
        let SendContext { stats, now_ns, .. } = context;
        let flow = frame.flow();
        let chosen = self.classifier.connection(flow, frame.bytes, frame.kind(), now_ns);
        // Each connection has its own dictionaries: all flows that share one use the same
        // connection.
        let shared = compression.policy.filter(|policy| policy.dictionary.is_some());
        let bulk = self.connections.len().saturating_sub(1).max(1);
        let chosen = shared.map_or(chosen, |policy| 1 + policy.owner.spread() % bulk);
        let chosen = chosen % self.connections.len().max(1);
        let Some(chosen) = self.connections.get_mut(chosen) else { return false };
        let connection = &mut chosen.connection;
        let sent = match pieces_of(frame, connection.unit_bytes(), scratch) {
            Some(mut parts) => parts.try_for_each(|(offload, piece)| {
                let header = FrameHeader::of(offload, frame.way);
                let parts = &[header.bytes(), &piece];
                connection.send(&Outgoing { flow, parts, compression }, now_ns, stats)
            }),
            None => {
                let header = FrameHeader::of(frame.offload, frame.way);
                let mut slices: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
                slices[0] = header.bytes();
                let count = 1 + frame.gather(&mut slices[1..]);
                let parts = &slices[..count];
                connection.send(&Outgoing { flow, parts, compression }, now_ns, stats)
            }
        };
        match sent {
            Ok(()) => true,
            Err(error) => {
                self.broken.get_or_insert(error);
                false
            }
        }
    }

    /// Sends a message on the first connection, and on those that are silent. The peer ignores
    /// copies.
    fn message(&mut self, context: SendContext<'_>, item: &Outgoing<'_>) {
        let SendContext { stats, now_ns, .. } = context;
        for (index, DataConnection { connection, .. }) in self.connections.iter_mut().enumerate() {
            if (index == 0 || connection.is_silent(KEEP_ALIVE_NS, now_ns))
                && let Err(error) = connection.send(item, now_ns, stats)
            {
                self.broken.get_or_insert(error);
            }
        }
    }

    fn queue_bytes(&self) -> usize {
        self.connections.iter().map(|of| of.connection.queue_bytes()).sum()
    }

    /// Ends all connections.
    fn end(&mut self, watch: &Watch, stats: &PeerStats) {
        for DataConnection { connection, .. } in self.connections.drain(..) {
            watch.forget(connection.as_fd());
            connection.count_waiting_as_dropped(stats);
        }
    }
}

#[derive(Default)]
pub struct PeerSender {
    sessions: Vec<(u64, SessionSender)>,
    current: Option<u64>,
    ordered: bool,
    /// By which it knows others whose frames are relayed to it.
    labels: HashMap<usize, Label>,
    /// Its hub says that it does not relay for it now.
    is_apart: bool,
}

impl PeerSender {
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Whether a session is used.
    pub fn is_up(&self) -> bool {
        self.current.is_some()
    }

    /// The peer's hub relays for it, or says that it does not.
    pub fn set_apart(&mut self, is_apart: bool) {
        self.is_apart = is_apart;
    }

    /// The peer's hub does not relay for it.
    pub fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Frames of the peer `from` have this label from now on.
    pub fn set_label(&mut self, from: usize, label: Option<Label>) {
        match label {
            Some(label) => self.labels.insert(from, label),
            None => self.labels.remove(&from),
        };
    }

    /// The label of frames of the peer `from`; 0: none.
    pub fn label_of(&self, from: usize) -> u16 {
        self.labels.get(&from).map_or(0, |label| label.number())
    }

    fn session(&mut self, session: u64) -> Option<&mut SessionSender> {
        self.sessions.iter_mut().find(|(id, _)| *id == session).map(|(_, sender)| sender)
    }

    pub fn install(
        &mut self,
        session: u64,
        mut sender: SessionSender,
        udp: &UdpSocket,
        watch: &Watch,
        next_token: &mut dyn FnMut() -> u64,
    ) -> io::Result<()> {
        match &mut sender {
            SessionSender::Datagrams(datagrams) => {
                datagrams.token = next_token();
                let socket = udp.sender()?;
                watch.watch(&socket, datagrams.token)?;
                datagrams.sender.open(socket);
            }
            SessionSender::Connections(connections) => {
                for of in &mut connections.connections {
                    of.token = next_token();
                    watch.watch(&of.connection, of.token)?;
                }
            }
        }
        self.sessions.push((session, sender));
        Ok(())
    }

    /// See [`Connections::set_dead_after`].
    pub fn set_dead_after(&self, time: Duration) {
        for (_, sender) in &self.sessions {
            if let SessionSender::Connections(connections) = sender {
                connections.set_dead_after(time);
            }
        }
    }

    pub fn use_session(&mut self, session: u64) {
        self.ordered = matches!(self.session(session), Some(SessionSender::Connections(_)));
        self.current = Some(session);
    }

    /// Drops frames until there is a session again.
    pub fn down(&mut self) {
        self.current = None;
        self.ordered = false;
    }

    pub fn retire(&mut self, session: u64, watch: &Watch, stats: &PeerStats) {
        match self.session(session) {
            Some(SessionSender::Connections(connections)) => connections.end(watch, stats),
            Some(SessionSender::Datagrams(datagrams)) => {
                if let Some(socket) = datagrams.sender.socket() {
                    watch.forget(socket);
                }
                datagrams.sender.count_waiting_as_dropped(stats);
            }
            None => {}
        }
        self.sessions.retain(|(id, _)| *id != session);
        if self.current == Some(session) {
            self.down();
        }
    }

    pub fn set_address(&mut self, session: u64, ends: Endpoints) {
        if let Some(SessionSender::Datagrams(datagrams)) = self.session(session) {
            datagrams.sender.set_address(ends);
        }
    }

    pub fn set_limit(&mut self, session: u64, bytes: usize) {
        if let Some(SessionSender::Datagrams(datagrams)) = self.session(session) {
            datagrams.sender.set_limit(bytes);
        }
    }

    /// Sets what was measured of the path of a session's datagrams.
    pub fn set_path(&mut self, session: u64, loss: f64, bytes_per_s: Option<u64>, gso: bool) {
        if let Some(SessionSender::Datagrams(datagrams)) = self.session(session) {
            datagrams.sender.set_path(loss, bytes_per_s);
            datagrams.sender.set_gso(gso);
        }
    }

    /// How a flow is compressed under the current session, and when it was seen last.
    pub fn decision(&self, flow: u64, policy: &Policy) -> Option<(u64, Decision)> {
        let (_, sender) = self.sessions.iter().find(|(id, _)| self.current == Some(*id))?;
        match sender {
            SessionSender::Datagrams(datagrams) => datagrams.sender.decision(flow, policy),
            // The flow may have moved from one connection to another.
            SessionSender::Connections(connections) => {
                let all = connections
                    .connections
                    .iter()
                    .filter_map(|of| of.connection.decision(flow, policy));
                all.max_by_key(|(seen_ns, _)| *seen_ns)
            }
        }
    }

    /// Sends a frame under the current session; without one it is dropped and counted.
    pub fn send(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) {
        let stats = context.stats;
        let bytes = frame.bytes as u64;
        let taken = match self.current.and_then(|current| self.session(current)) {
            None => false,
            Some(SessionSender::Datagrams(datagrams)) => {
                datagrams.sender.frame(context, frame, compression, scratch);
                true
            }
            Some(SessionSender::Connections(connections)) => {
                connections.send(context, frame, compression, scratch)
            }
        };
        if !taken {
            stats.dropped_down.add(1, bytes);
            return;
        }
        stats.frames_out.add(1);
        stats.bytes_out.add(bytes);
        compression.rule_stats.frames.add(1);
        compression.rule_stats.bytes.add(bytes);
    }

    /// Sends a message of the session itself.
    pub fn message(
        &mut self,
        session: u64,
        context: SendContext<'_>,
        item: &[u8],
        pad_to: usize,
        to: Option<Endpoints>,
    ) {
        match self.session(session) {
            Some(SessionSender::Datagrams(datagrams)) => {
                datagrams.sender.alone(context, item, pad_to, to);
            }
            Some(SessionSender::Connections(connections)) => {
                let compression = Compression { policy: None, rule_stats: Arc::default() };
                let item = Outgoing { flow: 0, parts: &[item], compression: &compression };
                connections.message(context, &item);
            }
            None => {}
        }
    }

    /// Sends datagrams that wait for more of their batch.
    pub fn flush(&mut self, context: SendContext<'_>) {
        for (_, sender) in &mut self.sessions {
            if let SessionSender::Datagrams(datagrams) = sender {
                datagrams.sender.flush(context);
            }
        }
    }

    /// Goes on with the socket with this token, if it is one of this peer's: writes what waits for
    /// room, and reads a connection.
    pub fn go_on(&mut self, token: u64, context: SendContext<'_>) {
        for (_, sender) in &mut self.sessions {
            match sender {
                SessionSender::Datagrams(datagrams) if datagrams.token == token => {
                    datagrams.sender.go_on(context);
                }
                SessionSender::Datagrams(_) => {}
                SessionSender::Connections(connections) => {
                    for of in &mut connections.connections {
                        if of.token == token
                            && let Err(error) = of.connection.go_on(context.now_ns, context.stats)
                        {
                            connections.broken.get_or_insert(error);
                        }
                    }
                }
            }
        }
    }

    /// Polls blocked sockets for room, and reports faults.
    pub fn look_after(
        &mut self,
        watch: &Watch,
        stats: &PeerStats,
        report: &mut dyn FnMut(u64, Fault),
    ) {
        let mut waiting = 0;
        for (session, sender) in &mut self.sessions {
            match sender {
                SessionSender::Datagrams(datagrams) => {
                    let Datagrams { sender, token, wants_room } = &mut **datagrams;
                    let blocked = sender.is_blocked();
                    if blocked != *wants_room
                        && let Some(socket) = sender.socket()
                    {
                        *wants_room = blocked;
                        if let Err(error) = watch.want_room(socket, *token, blocked) {
                            report(*session, Fault::Broken(error));
                        }
                    }
                    if let Some(bytes) = sender.take_too_long() {
                        report(*session, Fault::TooLong { bytes });
                    }
                    waiting += sender.queue_bytes();
                }
                SessionSender::Connections(connections) => {
                    for of in &mut connections.connections {
                        let blocked = of.connection.blocked();
                        if blocked != of.wants_room {
                            of.wants_room = blocked;
                            if let Err(error) = watch.want_room(&of.connection, of.token, blocked) {
                                connections.broken.get_or_insert(error);
                            }
                        }
                    }
                    if let Some(error) = connections.broken.take() {
                        // Or it would be told again and again.
                        connections.end(watch, stats);
                        report(*session, Fault::Broken(error));
                    }
                    waiting += connections.queue_bytes();
                }
            }
        }
        stats.queue_bytes.set(waiting as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::io::poll::{Half, Poll};
    use super::super::super::io::udp_port::UdpPort;
    use super::super::connection::testing::{connection, uncompressed};
    use super::*;
    use vsnoop_packet::offload::state::OffloadState;
    use vsnoop_packet::testing::SegmentBuilder;

    #[test]
    fn dead_after_applies_to_connections_that_are_there() {
        let timeout = |sender: &PeerSender| match &sender.sessions[..] {
            [(1, SessionSender::Connections(of))] => {
                SockRef::from(&of.connections[0].connection).tcp_user_timeout().unwrap()
            }
            _ => panic!("another session"),
        };
        let (connection, _far) = connection();
        let connections = Connections::new(vec![connection]);
        connections.set_dead_after(Duration::from_secs(5));
        let mut sender = PeerSender::default();
        sender.sessions.push((1, SessionSender::Connections(Box::new(connections))));
        assert_eq!(timeout(&sender), Some(Duration::from_secs(5)));
        sender.set_dead_after(Duration::from_secs(7));
        assert_eq!(timeout(&sender), Some(Duration::from_secs(7)));
    }

    #[test]
    fn what_no_connection_takes_is_dropped_and_not_sent() {
        let (connection, far) = connection();
        let watch = Watch::new(&Arc::new(Poll::new().unwrap()), Half::Egress).unwrap();
        let udp = UdpPort::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap().receivers.remove(0);
        let (stats, compression) = (PeerStats::default(), uncompressed());
        let mut sender = PeerSender::default();
        let connections = SessionSender::Connections(Box::new(Connections::new(vec![connection])));
        sender.install(1, connections, &udp, &watch, &mut || 0).unwrap();
        sender.use_session(1);
        drop(far);
        let whole = SegmentBuilder { payload: 1000, ..SegmentBuilder::default() }.build();
        let parts = [&whole[..]];
        let (mut given, mut at_fault) = (0, Vec::new());
        while given < 1000 {
            let frame = Frame::whole(OffloadState::default(), &parts);
            let context = SendContext { udp: &udp, stats: &stats, now_ns: 0 };
            sender.send(context, &frame, &compression, &mut Vec::new());
            given += 1;
            let mut fault = |_, _| at_fault.push(stats.frames_out.get());
            sender.look_after(&watch, &stats, &mut fault);
        }
        let (sent, dropped) = (stats.frames_out.get(), &stats.dropped_down);
        assert_eq!(at_fault, [sent], "it ended once, and nothing was sent any more");
        assert_eq!(compression.rule_stats.frames.get(), sent);
        assert_eq!(sent + dropped.frames.get(), given);
        assert_eq!(stats.bytes_out.get() + dropped.bytes.get(), given * whole.len() as u64);
    }
}
