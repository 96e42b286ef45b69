//! The senders of one session: of its datagrams, or of its data connections.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::SockRef;

use super::connection::{ConnectionSender, Outgoing};
use super::datagrams::DatagramSender;
use super::pieces::pieces_of;
use super::send_context::SendContext;
use super::token::EgressToken;
use crate::config::OuterConfig;
use crate::counters::stats::PeerStats;
use crate::frames::compression_policy::Compression;
use crate::frames::frame::Frame;
use crate::io::poll::Watch;
use crate::io::port::MAX_PARTS;
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
    pub(super) sender: DatagramSender,
    pub(super) token: Option<EgressToken>,
    /// Whether the socket is watched for room, too.
    pub(super) wants_room: bool,
}

impl Datagrams {
    pub fn new(sender: DatagramSender) -> Self {
        Self { sender, token: None, wants_room: false }
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
    pub(super) connections: Vec<DataConnection>,
    classifier: Classifier,
    pub(super) broken: Option<io::Error>,
}

pub(super) struct DataConnection {
    pub connection: ConnectionSender,
    /// Token of its socket in the thread's epoll.
    pub token: Option<EgressToken>,
    /// Whether the socket is watched for room, too.
    pub wants_room: bool,
}

impl Connections {
    pub fn new(connections: Vec<ConnectionSender>) -> Self {
        let classifier = Classifier::new(connections.len());
        let unwatched = |connection| DataConnection { connection, token: None, wants_room: false };
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
    pub(super) fn send_frame(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) -> bool {
        let SendContext { stats, now_ns, .. } = context;
        let flow = frame.flow();
        let chosen = self.classifier.choose_connection(flow, frame.bytes, frame.kind(), now_ns);
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
                let header = FrameHeader::new(offload, frame.way);
                let parts = &[header.bytes(), &piece];
                connection.send(&Outgoing { flow, parts, compression }, now_ns, stats)
            }),
            None => {
                let header = FrameHeader::new(frame.offload, frame.way);
                let mut slices: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
                slices[0] = header.bytes();
                let count = 1 + frame.gather_parts(&mut slices[1..]);
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
    pub(super) fn send_message(&mut self, context: SendContext<'_>, item: &Outgoing<'_>) {
        let SendContext { stats, now_ns, .. } = context;
        for (index, DataConnection { connection, .. }) in self.connections.iter_mut().enumerate() {
            if (index == 0 || connection.is_silent(KEEP_ALIVE_NS, now_ns))
                && let Err(error) = connection.send(item, now_ns, stats)
            {
                self.broken.get_or_insert(error);
            }
        }
    }

    pub(super) fn queue_bytes(&self) -> usize {
        self.connections.iter().map(|data| data.connection.queue_bytes()).sum()
    }

    /// Ends all connections.
    pub(super) fn end_connections(&mut self, watch: &Watch, stats: &PeerStats) {
        for DataConnection { connection, .. } in self.connections.drain(..) {
            watch.forget(connection.as_fd());
            connection.count_waiting_as_dropped(stats);
        }
    }
}
