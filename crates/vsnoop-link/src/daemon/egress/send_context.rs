//! What sending to a peer needs beside what is sent.

use crate::daemon::io::udp::UdpSocket;
use crate::daemon::stats::PeerStats;

#[derive(Clone, Copy)]
pub struct SendContext<'a> {
    pub udp: &'a UdpSocket,
    /// Of the peer.
    pub stats: &'a PeerStats,
    pub now_ns: u64,
}
