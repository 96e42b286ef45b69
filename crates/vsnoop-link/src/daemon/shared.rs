//! What the threads of a link share: the forwarding table, the ports, counters, the clock.

use std::sync::RwLock;
use std::time::Instant;

use super::io::port::Port;
use super::io::udp::UdpSocket;
use super::stats::{LinkStats, PeerStats, PortStats};
use crate::forwarding::Table;

pub struct Shared {
    begun: Instant,
    pub table: RwLock<Table>,
    pub ports: Vec<(Port, PortStats)>,
    pub peers: Vec<PeerStats>,
    pub udp: UdpSocket,
    pub stats: LinkStats,
}

impl Shared {
    pub fn new(table: Table, ports: Vec<Port>, peers: usize, udp: UdpSocket) -> Self {
        Self {
            begun: Instant::now(),
            table: RwLock::new(table),
            ports: ports.into_iter().map(|port| (port, PortStats::default())).collect(),
            peers: (0..peers).map(|_| PeerStats::default()).collect(),
            udp,
            stats: LinkStats::default(),
        }
    }

    /// Nanoseconds since the link began.
    pub fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}
