//! Orders of the control thread to the egress half.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::session_sender::SessionSender;
use crate::frames::compression_policy::{FlowCounts, Policies};
use crate::io::udp::Endpoints;
use crate::threads::shared::Shared;
use vsnoop_link::introduction::Label;
use vsnoop_link::session::SessionId;
use vsnoop_link::slots::{PeerSlot, PortSlot};

/// An order of the control thread.
pub enum Order {
    /// A session is there.
    Install {
        peer: PeerSlot,
        session: SessionId,
        sender: Box<SessionSender>,
    },
    /// Frames go by this session from now on.
    Use {
        peer: PeerSlot,
        session: SessionId,
    },
    /// A session is over; what waits in it is dropped.
    Retire {
        peer: PeerSlot,
        session: SessionId,
    },
    /// The peer has no session: frames are dropped.
    Down {
        peer: PeerSlot,
    },
    Address {
        peer: PeerSlot,
        session: SessionId,
        ends: Endpoints,
    },
    /// The longest datagram for the path.
    Limit {
        peer: PeerSlot,
        session: SessionId,
        bytes: usize,
    },
    /// Measurements of the path: the share of datagrams lost, its rate.
    Path {
        peer: PeerSlot,
        session: SessionId,
        loss: f64,
        bytes_per_s: Option<u64>,
        /// Many datagrams may leave with one system call.
        gso: bool,
    },
    /// Sends an item of the session itself, padded to `pad_to` bytes of datagram; to `to`, if that
    /// is not the session's address.
    Message {
        peer: PeerSlot,
        session: SessionId,
        item: Vec<u8>,
        pad_to: usize,
        to: Option<Endpoints>,
    },
    /// Frames of the peer `from`, relayed to this one, have this label from now on.
    Label {
        peer: PeerSlot,
        from: PeerSlot,
        label: Option<Label>,
    },
    /// The hub of the peer relays for it, or says that it does not.
    Apart {
        peer: PeerSlot,
        is_apart: bool,
    },
    /// Connections whose bytes a peer has not acknowledged for this time end from now on.
    DeadAfter(Duration),
    /// Answers with the flows of each rule, by how they are compressed.
    Survey(SyncSender<Vec<FlowCounts>>),
    /// Compress by these rules.
    Policies(Policies),
    /// Read a port again that has failed.
    Watch {
        port: PortSlot,
    },
    /// Go on with these ports and peers.
    Reload {
        shared: Arc<Shared>,
        done: SyncSender<()>,
    },
    Stop,
}
