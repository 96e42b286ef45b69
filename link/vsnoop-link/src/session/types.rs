//! Events, actions and the status of a [`Peer`](super::Peer).

use std::fmt;
use std::net::SocketAddr;

use super::delivery::Delivery;
use super::message::Message;
use super::round_trip::RoundTrip;
use crate::wire::seal::{MOST_BYTES, MOST_RECORDS};

/// A session at this end: a name that the caller gives, unique while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Ours.
    Us,
    /// The peer.
    Peer,
}

/// A session as its handshake has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its name.
    pub id: SessionId,
    /// The end that dialled.
    pub initiator: End,
    /// The epoch in the initiator's hello ([`Action::Dial`]).
    pub epoch: u32,
    /// The peer's instance: another one after each start of its process.
    pub instance: u64,
    /// Address to which packets of the session are sent. In a session over datagrams that the peer
    /// has dialled, at first the address of the handshake: the first datagram corrects it.
    pub address: SocketAddr,
    /// A hub has passed on the handshake, and said where the peer is. Neither proves that datagrams
    /// get there. Both ends send some, so that NATs let the answers in, and each uses the session
    /// when one of its probes was answered.
    pub introduced: bool,
}

/// Configuration of a peer's state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// The address to dial, as configured; `None`: the peer dials.
    pub address: Option<String>,
    /// Our public key is the larger one, so that of two sessions dialled at once ours stays. The
    /// two ends must see this differently.
    pub favoured: bool,
    /// For datagrams: the largest IP packet that the interface takes, bytes, until
    /// [`PeerEvent::Largest`] says otherwise. `None`: an ordered transport.
    pub largest_packet_bytes: Option<u16>,
    /// Interval between regular probes.
    pub probe_ns: u64,
    /// Silence after which the peer is dead.
    pub dead_ns: u64,
    /// Age at which keys are replaced.
    pub rekey_ns: u64,
    /// Age at which a session ends, with new keys or without.
    pub keys_end_ns: u64,
    /// Records of one session, in either direction, after which keys are replaced.
    pub rekey_records: u64,
    /// Bytes, likewise.
    pub rekey_bytes: u64,
    /// Records after which a session ends, with new keys or without: see
    /// [`MOST_RECORDS`](crate::wire::seal::MOST_RECORDS).
    pub most_records: u64,
    /// Bytes, likewise.
    pub most_bytes: u64,
    /// How long packets of a replaced session are still received.
    pub retire_ns: u64,
    /// First and last of the waits between attempts to dial.
    pub back_off_ns: (u64, u64),
    /// Time in use after which the waits between attempts begin anew.
    pub settled_ns: u64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            address: None,
            favoured: false,
            largest_packet_bytes: None,
            probe_ns: SECOND_NS,
            dead_ns: 5 * SECOND_NS,
            rekey_ns: 3600 * SECOND_NS,
            keys_end_ns: 7200 * SECOND_NS,
            rekey_records: MOST_RECORDS / 2,
            rekey_bytes: MOST_BYTES / 2,
            most_records: MOST_RECORDS,
            most_bytes: MOST_BYTES,
            retire_ns: 10 * SECOND_NS,
            back_off_ns: (SECOND_NS / 5, 30 * SECOND_NS),
            settled_ns: 10 * SECOND_NS,
        }
    }
}

/// Counters of the data path for a session since it was installed. They need not be reported for
/// each packet: before each tick is enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionTraffic {
    /// Authenticated packets received, messages included.
    pub received_packets: u64,
    /// Bytes of the packets received.
    pub received_bytes: u64,
    /// Packets that the peer has sent, by the highest counter of each stream. With an ordered
    /// transport: those received.
    pub expected_packets: u64,
    /// Packets sent, messages included.
    pub sent_packets: u64,
    /// Bytes of the packets sent.
    pub sent_bytes: u64,
}

/// An event that the state machine handles.
#[derive(Clone, Debug)]
pub enum PeerEvent {
    /// The configuration is new, or was changed.
    Configured(PeerSettings),
    /// The result of an [`Action::Dial`]: exactly one for each.
    Dialled(Result<SessionInfo, DialError>),
    /// The peer has dialled.
    Accepted(SessionInfo),
    /// Counters of a session.
    Traffic(SessionId, SessionTraffic),
    /// An authenticated packet. Required for the first packet of a session, and for each from an
    /// address other than the session's; harmless for others.
    Received {
        /// The session of its keys.
        session: SessionId,
        /// Its source address.
        from: SocketAddr,
        /// Its counter is higher than that of all before it.
        newest: bool,
    },
    /// A message, authenticated, as read from such a packet (after its `Received`).
    Message {
        /// The session of its packet.
        session: SessionId,
        /// Its contents.
        message: Message,
        /// Size with its padding.
        size_bytes: u16,
        /// Time of arrival, by the clock of `now_ns`.
        received_ns: u64,
    },
    /// The kernel refused a packet of this size (EMSGSIZE).
    TooBig {
        /// IP packet, bytes.
        size_bytes: u16,
    },
    /// MTU of the interface on the route to the peer, bytes.
    /// Required for the address of each session that comes into use, and for each address that the
    /// peer moves to.
    Largest(u16),
    /// A session cannot go on: its connection was closed or reset.
    Failed {
        /// The session.
        session: SessionId,
        /// The reason, as the status shows it.
        reason: String,
    },
    /// A session must end: the peer's proof of identity is no longer valid.
    Expired {
        /// The session.
        session: SessionId,
        /// The reason, as the status shows it.
        reason: String,
    },
    /// Replace the session in use: what both ends agree on has changed here.
    Renew,
    /// The hub says that the peer can be called now, or has moved there.
    Found(SocketAddr),
    /// The link goes down.
    Close,
    /// Time has passed: at [`Peer::deadline_ns`](super::Peer::deadline_ns), or earlier.
    Tick,
}

/// Why an attempt to dial has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialError {
    /// The reason, as the status shows it.
    pub reason: String,
    /// The peer proved its key, and the attempt failed for another reason.
    pub answered: bool,
}

/// An action that the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a handshake, with this epoch in the hello. [`PeerEvent::Dialled`] reports its result.
    Dial {
        /// The address, as configured.
        address: String,
        /// The epoch in the hello.
        epoch: u32,
    },
    /// Neither end, or one of them, hears anything of the other by this session; it ends for that.
    Silent(SessionId),
    /// Receive under a session, until it is forgotten.
    Install(SessionId),
    /// Send under this session from now on, and no longer under another.
    Use(SessionId),
    /// The session is over.
    Forget(SessionId),
    /// Nothing can be sent: there is no session in use.
    Down,
    /// Send a message under a session.
    Send {
        /// The session.
        session: SessionId,
        /// The message.
        message: Message,
        /// Pads the IP packet to this size, bytes, with DF set; `None`: no padding.
        packet_bytes: Option<u16>,
        /// Send it to this address; `None`: to the session's.
        to: Option<SocketAddr>,
    },
    /// Send packets of a session to this address from now on.
    Roam(SessionId, SocketAddr),
    /// The largest IP packet of data, bytes.
    PathMtu(u16),
    /// Log a change of state.
    Report(Report),
}

/// A change of state, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The first session, or one after a time without.
    Up {
        /// The peer's address.
        address: SocketAddr,
    },
    /// A session took the place of another.
    Replaced,
    /// The peer was lost.
    Down {
        /// The reason.
        reason: String,
    },
    /// An attempt to dial has failed; repeated failures with the same reason are reported once.
    DialFailed {
        /// The reason.
        reason: String,
        /// Time until the next attempt.
        retry_ns: u64,
    },
    /// New keys are due, and an attempt to make them has failed.
    RekeyFailed {
        /// The reason.
        reason: String,
        /// Time until the session ends.
        left_ns: u64,
    },
    /// The peer has moved.
    Roamed {
        /// The former address.
        from: SocketAddr,
        /// The new address.
        to: SocketAddr,
    },
    /// The path MTU, bytes.
    PathMtu(u16),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up { address } => write!(f, "up, at {address}"),
            Self::Replaced => write!(f, "a new session is in use"),
            Self::Down { reason } => write!(f, "down: {reason}"),
            Self::DialFailed { reason, retry_ns } => {
                let seconds = *retry_ns as f64 / 1e9;
                write!(f, "{reason}; next attempt in {seconds:.1} s")
            }
            Self::RekeyFailed { reason, left_ns } => {
                let seconds = left_ns / SECOND_NS;
                write!(f, "no new keys: {reason}; the session ends in {seconds} s")
            }
            Self::Roamed { from, to } => write!(f, "moved from {from} to {to}"),
            Self::PathMtu(bytes) => write!(f, "path MTU {bytes}"),
        }
    }
}

/// State of a peer's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Waiting for the peer to dial.
    Waiting,
    /// The peer is being dialled.
    Dialling {
        /// Number of the attempt since the peer was up last, from 1.
        attempt: u32,
    },
    /// A session is in use.
    Up(SessionId),
    /// The link goes down.
    Closed,
}

/// A peer's state for the status.
#[derive(Clone, Debug)]
pub struct PeerSnapshot {
    /// State of its sessions.
    pub state: SessionState,
    /// When that state began.
    pub since_ns: u64,
    /// The last error, unless the peer is up; after the peer has closed, that, until it answers.
    pub reason: Option<String>,
    /// Address to which packets are sent.
    pub address: Option<SocketAddr>,
    /// Epoch of the session in use.
    pub epoch: Option<u32>,
    /// Path MTU of the session in use, as bytes of an IP packet; datagrams only.
    pub path_mtu_bytes: Option<u16>,
    /// Round trip of probes.
    pub round_trip: RoundTrip,
    /// Sums over all sessions.
    pub delivery: Delivery,
    /// Times that it came up after having been up before.
    pub reconnects: u64,
    /// Sessions that replaced another without a break.
    pub rekeys: u64,
    /// Changes of address.
    pub roams: u64,
    /// New keys are due and do not come.
    pub overdue: Option<Overdue>,
}

/// The session in use should have been replaced, and was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Since when.
    pub since_ns: u64,
    /// Why.
    pub reason: String,
    /// When the session ends for its age.
    pub ends_ns: u64,
}

impl PeerSnapshot {
    /// The round trip, if there is one now: the peer is up, and a probe has come back.
    pub fn round_trip_now(&self) -> Option<RoundTrip> {
        let is_up = matches!(self.state, SessionState::Up(_));
        (is_up && self.round_trip.count > 0).then_some(self.round_trip)
    }
}
