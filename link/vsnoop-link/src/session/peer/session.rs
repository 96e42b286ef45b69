//! One session of a peer, as the state machine knows it.

use crate::session::message::Counters;
use crate::session::types::{SessionInfo, SessionTraffic};

/// Phase of a session; the diagram is in [`crate::session`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No packet has arrived under it yet. The peer gives it up at `until_ns`, and probes it at
    /// `probe_ns` if this end has dialled.
    Pending {
        until_ns: u64,
        probe_ns: u64,
    },
    Used,
    Retiring {
        until_ns: u64,
    },
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) info: SessionInfo,
    pub(super) phase: Phase,
    pub(super) traffic: SessionTraffic,
    pub(super) since_ns: u64,
    /// When its keys are to be replaced.
    pub(super) old_at_ns: u64,
    /// Hard end of the session, with or without a successor.
    pub(super) ends_at_ns: u64,
    /// It belongs to an earlier instance of the peer: any other session outranks it.
    pub(super) void: bool,
    /// `info.address` is the source of its datagrams. If the peer has dialled, it is so from the
    /// first datagram on, since the handshake came from another port.
    pub(super) located: bool,
}

impl Session {
    /// Its counters for a probe or an answer.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            received_packets: self.traffic.received_packets,
            received_bytes: self.traffic.received_bytes,
            expected_packets: self.traffic.expected_packets,
        }
    }
}
