//! The receiving state of a session over UDP.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::counters::counts::SessionCounts;
use vsnoop_link::compress::Codecs;
use vsnoop_link::wire::fragment::Rejoin;
use vsnoop_link::wire::seal::Opener;

/// How long a frame may take to arrive in its fragments.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Keys and state that open the records of one session.
pub struct DatagramSession {
    /// For each stream.
    pub openers: Vec<Opener>,
    pub rejoin: Rejoin,
    pub units: Rejoin,
    /// The frame and the unit of the newest part whose datagram had a CE mark.
    pub congested: [Option<u16>; 2],
    /// Source of its newest record.
    pub from: Option<SocketAddr>,
    /// Codecs that our hello accepts.
    pub accepted: Codecs,
    pub counts: Arc<SessionCounts>,
}

impl DatagramSession {
    pub fn new(openers: Vec<Opener>, accepted: Codecs, counts: Arc<SessionCounts>) -> Self {
        Self {
            openers,
            rejoin: Rejoin::new(PATIENCE_NS),
            units: Rejoin::new(PATIENCE_NS),
            congested: [None; 2],
            from: None,
            accepted,
            counts,
        }
    }
}
