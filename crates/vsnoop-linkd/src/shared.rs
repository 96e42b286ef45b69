//! State that the threads of a link share: the forwarding table, the ports, counters, the clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::counted_port::CountedPort;
use super::divert::taps::DivertTaps;
use super::frame::Frame;
use super::io::port::Port;
use super::io::udp::UdpSocket;
use super::own::Own;
use super::stats::{LinkStats, PeerStats};
use vsnoop_link::forwarding::{self, Location, SourceFilter};

pub struct Shared {
    begun: Instant,
    pub table: forwarding::SharedTable,
    pub ports: Vec<CountedPort>,
    /// `None` without diversion.
    pub divert_taps: Option<DivertTaps>,
    pub peers: Vec<PeerStats>,
    pub udp: UdpSocket,
    /// Which packets are the link's own.
    pub own: Own,
    pub stats: LinkStats,
    /// The longest frame that every peer over UDP takes without another cut; 0: no limit.
    /// By peer; 0: none.
    frame_limits_bytes: Vec<AtomicUsize>,
}

impl Shared {
    pub fn new(
        table: forwarding::TableSettings,
        ports: Vec<Port>,
        divert_taps: Option<DivertTaps>,
        peers: usize,
        udp: UdpSocket,
        own: Own,
    ) -> Self {
        Self {
            begun: Instant::now(),
            table: forwarding::SharedTable::new(table),
            ports: ports.into_iter().map(CountedPort::new).collect(),
            divert_taps,
            peers: (0..peers).map(|_| PeerStats::default()).collect(),
            udp,
            own,
            stats: LinkStats::default(),
            frame_limits_bytes: (0..peers).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Bounds the source addresses of a port's VMs, and fixes their MAC addresses to it.
    pub fn allow_sources(&mut self, port: usize, sources: &SourceFilter) {
        let mut table = self.table.write();
        for mac in &sources.macs {
            table.fix(*mac, Location::Port(port as u16));
        }
        drop(table);
        self.ports[port].sources = sources.clone();
    }

    /// See [`set_frame_limit`](Self::set_frame_limit).
    pub fn frame_limit(&self, peer: usize) -> Option<usize> {
        let limit = self.frame_limits_bytes.get(peer)?.load(Ordering::Relaxed);
        (limit > 0).then_some(limit)
    }

    /// TCP is told to make no longer frames to a peer; `None`: as long as it likes.
    pub fn set_frame_limit(&self, peer: usize, bytes: Option<usize>) {
        if let Some(limit) = self.frame_limits_bytes.get(peer) {
            limit.store(bytes.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Writes a frame to a local port.
    pub fn write_to_port(&self, index: usize, frame: &Frame<'_>) {
        let Some(port) = self.ports.get(index) else { return };
        port.write(frame);
    }

    /// Nanoseconds since the link began.
    pub fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}
