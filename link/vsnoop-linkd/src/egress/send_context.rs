//! The context of sending to a peer: all that is needed besides the data.

use crate::counters::stats::PeerStats;
use crate::io::udp::UdpSocket;

#[derive(Clone, Copy)]
pub struct SendContext<'a> {
    /// The socket that receives at the link's port; messages of sessions leave by it.
    pub udp: &'a UdpSocket,
    /// Counters of the peer.
    pub stats: &'a PeerStats,
    pub now_ns: u64,
}
