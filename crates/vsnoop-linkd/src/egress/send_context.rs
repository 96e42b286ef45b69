//! What sending to a peer needs beside what is sent.

use crate::io::udp::UdpSocket;
use crate::stats::PeerStats;

#[derive(Clone, Copy)]
pub struct SendContext<'a> {
    pub udp: &'a UdpSocket,
    /// Of the peer.
    pub stats: &'a PeerStats,
    pub now_ns: u64,
}
