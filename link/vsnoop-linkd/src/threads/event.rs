//! Events that the threads of a link report to its control thread.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::handshake::establish::Made;
use crate::handshake::tcp_handshake::Established;
use crate::io::udp::Endpoints;
use crate::threads::fault::{Fault, ReceiveError};
use vsnoop_link::handshake;
use vsnoop_link::session::{DialError, SessionId};
use vsnoop_link::slots::{FrameSource, PeerSlot};

/// From the data threads, and from those that make sessions.
pub enum ControlEvent {
    /// A message of a session was received.
    Message(ReceivedMessage),
    /// The newest datagram of a session came from elsewhere than those before.
    Moved { peer: PeerSlot, session: SessionId, ends: Endpoints },
    /// Something is wrong with sending under a session.
    Outgoing { peer: PeerSlot, session: SessionId, fault: Fault },
    /// The ingress thread has given up a session.
    Incoming { peer: PeerSlot, session: SessionId, error: ReceiveError },
    /// A read of a port or divert tap has failed; it is not read from now on.
    SourceFailed { source: FrameSource, error: io::Error },
    /// The address of a peer that is dialled was resolved; `serial` as below.
    Resolved { peer: PeerSlot, serial: u64, addresses: Vec<IpAddr> },
    /// `serial`: of the entry of the peer that was dialled ([`crate::peers`]);
    /// `generation`: reloads before it began.
    Dialled { peer: PeerSlot, serial: u64, generation: u64, result: Result<Box<Made>, DialError> },
    Accepted {
        from: SocketAddr,
        /// Reloads before the handshake began.
        generation: u64,
        established: Result<Box<Established>, handshake::Error>,
    },
}

/// A message of a session as it was received, for the control thread.
pub struct ReceivedMessage {
    pub peer: PeerSlot,
    pub session: SessionId,
    pub kind: MessageKind,
    pub item: Vec<u8>,
    /// `None`: it came over a connection.
    pub datagram: Option<ReceivedDatagram>,
}

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// The session itself.
    Session,
    /// Peers of a hub.
    Introduction,
}

/// A datagram that a session has received.
#[derive(Clone, Copy)]
pub struct ReceivedDatagram {
    pub ends: Endpoints,
    /// Its number is above those of all others so far.
    pub is_newest: bool,
    pub bytes: usize,
}
