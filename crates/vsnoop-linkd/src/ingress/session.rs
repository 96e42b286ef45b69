//! A session over UDP, as its receiver knows it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::counts::SessionCounts;
use vsnoop_link::compress::Codecs;
use vsnoop_link::wire::fragment::Rejoin;
use vsnoop_link::wire::seal::Opener;

/// How long a frame may take to arrive in its fragments.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Keys and state that open the records of one session.
pub struct DatagramSession {
    /// By stream.
    pub openers: Vec<Opener>,
    pub rejoin: Rejoin,
    pub units: Rejoin,
    /// The frame, and the unit, of which the newest part that had met congestion (CE) was.
    pub congested: [Option<u16>; 2],
    /// Where its newest record came from.
    pub from: Option<SocketAddr>,
    /// What the peer may have compressed by.
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
