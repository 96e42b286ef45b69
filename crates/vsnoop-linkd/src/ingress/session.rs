//! A session over UDP, as its receiver knows it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::counts::SessionCounts;
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
    /// Where its newest record came from.
    pub from: Option<SocketAddr>,
    pub counts: Arc<SessionCounts>,
}

impl DatagramSession {
    pub fn new(openers: Vec<Opener>, counts: Arc<SessionCounts>) -> Self {
        Self {
            openers,
            rejoin: Rejoin::new(PATIENCE_NS),
            units: Rejoin::new(PATIENCE_NS),
            from: None,
            counts,
        }
    }
}
