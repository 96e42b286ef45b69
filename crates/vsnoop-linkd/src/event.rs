//! Events that the threads of a link report to its control thread.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::establish::Made;
use super::fault::{Fault, ReceiveError};
use super::io::udp::Endpoints;
use super::tcp_handshake::Established;
use vsnoop_link::handshake;
use vsnoop_link::session::DialError;

/// From the data threads, and from those that make sessions.
pub enum ControlEvent {
    /// A message of a session was received.
    Message(ReceivedMessage),
    /// The newest datagram of a session came from elsewhere than those before.
    Moved { peer: usize, session: u64, ends: Endpoints },
    /// Something is wrong with sending under a session.
    Outgoing { peer: usize, session: u64, fault: Fault },
    /// The ingress thread has given up a session.
    Incoming { peer: usize, session: u64, error: ReceiveError },
    /// A read of a port has failed.
    PortFailed { port: usize, error: io::Error },
    /// A read of a divert tap has failed; the tap is not read from now on.
    DivertTapFailed { divert_tap: usize, error: io::Error },
    /// The address of a peer that is dialled was resolved; `serial` as below.
    Resolved { peer: usize, serial: u64, addresses: Vec<IpAddr> },
    /// `serial`: of the entry of the peer that was dialled ([`crate::control_thread`]);
    /// `generation`: reloads before it began.
    Dialled { peer: usize, serial: u64, generation: u64, result: Result<Box<Made>, DialError> },
    Accepted {
        from: SocketAddr,
        /// Reloads before the handshake began.
        generation: u64,
        established: Result<Box<Established>, handshake::Error>,
    },
}

/// A message of a session as it was received, for the control thread.
pub struct ReceivedMessage {
    pub peer: usize,
    pub session: u64,
    pub kind: MessageKind,
    pub item: Vec<u8>,
    /// `None`: it came over a connection.
    pub datagram: Option<ReceivedDatagram>,
}

/// What a message is about.
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
