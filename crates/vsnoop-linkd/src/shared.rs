//! State that the threads of a link share: the forwarding table, the ports, counters, the clock.
//!
//! A [`Shared`] never changes. A reload makes another one of the same parts and new ones, which
//! each thread gets by an order: no thread waits for a lock on its way to a port. Ports and peers
//! have numbers (*slots*) that stay theirs until they are removed; then others may get them. Each
//! pair of threads has a view with its own queue of each port ([`Shared::for_pair`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::clock::Clock;
use super::config::{Config, PeerConfig, PortConfig};
use super::counted_port::CountedPort;
use super::divert::taps::DivertTaps;
use super::frame::Frame;
use super::io::udp::UdpSocket;
use super::io::udp_port::UdpPort;
use super::own::Own;
use super::pairs::Pairs;
use super::slots::Slots;
use super::stats::{LinkStats, PeerStats};
use vsnoop_link::forwarding::{self, Location};

#[derive(Clone)]
pub struct Shared {
    pub clock: Clock,
    pub table: Arc<forwarding::SharedTable>,
    /// By slot; `None`: the port was removed.
    pub ports: Vec<Option<CountedPort>>,
    /// `None` without diversion.
    pub divert_taps: Option<DivertTaps>,
    /// By slot, also of those that were removed.
    pub peers: Vec<Arc<PeerStats>>,
    /// Sends messages; sockets that send frames join by it.
    pub udp: Arc<UdpSocket>,
    pub pairs: Pairs,
    /// The pair of threads whose view this is.
    pub pair: usize,
    /// By pair.
    receivers: Arc<[Arc<UdpSocket>]>,
    /// Which packets are the link's own.
    pub own: Arc<Own>,
    pub stats: Arc<LinkStats>,
    /// By slot: the hub that the peer is behind.
    hubs: Vec<Option<usize>>,
    /// The longest frame that every peer over UDP takes without another cut; 0: no limit.
    /// By peer; 0: none.
    frame_limits_bytes: Vec<Arc<AtomicUsize>>,
    /// By peer: whether the pair that serves it has a session for its frames.
    up: Vec<Arc<AtomicBool>>,
}

impl Shared {
    pub fn new(
        table: forwarding::TableSettings,
        ports: Vec<CountedPort>,
        divert_taps: Option<DivertTaps>,
        peers: usize,
        udp: UdpPort,
        own: Own,
    ) -> Self {
        let UdpPort { receivers } = udp;
        Self {
            clock: Clock::start(),
            table: Arc::new(forwarding::SharedTable::new(table)),
            ports: ports.into_iter().map(Some).collect(),
            divert_taps,
            peers: (0..peers).map(|_| Arc::default()).collect(),
            udp: Arc::clone(&receivers[0]),
            pairs: Pairs::new(receivers.len()),
            pair: 0,
            receivers: receivers.into(),
            own: Arc::new(own),
            stats: Arc::default(),
            hubs: Vec::new(),
            frame_limits_bytes: (0..peers).map(|_| Arc::default()).collect(),
            up: (0..peers).map(|_| Arc::default()).collect(),
        }
    }

    /// The view of a pair of threads.
    pub fn for_pair(&self, pair: usize) -> Self {
        let view = |port: &Option<CountedPort>| port.as_ref().map(|port| port.for_pair(pair));
        Self { pair, ports: self.ports.iter().map(view).collect(), ..self.clone() }
    }

    /// The socket by which this pair receives.
    pub fn receiver(&self) -> &Arc<UdpSocket> {
        &self.receivers[self.pair]
    }

    /// Whether this pair serves the peer.
    pub fn serves(&self, peer: usize) -> bool {
        self.pairs.of(peer) == self.pair
    }

    /// Whether this pair reads the port: each reads its own queue, and one of them a port that has
    /// one only.
    pub fn reads(&self, slot: usize, port: &CountedPort) -> bool {
        port.has_queues() || self.pairs.of(slot) == self.pair
    }

    /// The port with this number.
    pub fn port(&self, slot: usize) -> Option<&CountedPort> {
        self.ports.get(slot)?.as_ref()
    }

    /// All ports, with their numbers.
    pub fn all_ports(&self) -> impl Iterator<Item = (usize, &CountedPort)> {
        self.ports.iter().enumerate().filter_map(|(slot, port)| Some((slot, port.as_ref()?)))
    }

    /// Makes room for the counters of a peer with this number, from zero.
    pub fn set_new_peer(&mut self, slot: usize) {
        if slot >= self.peers.len() {
            self.peers.resize_with(slot + 1, Arc::default);
            self.frame_limits_bytes.resize_with(slot + 1, Arc::default);
            self.up.resize_with(slot + 1, Arc::default);
        }
        self.peers[slot] = Arc::default();
        self.frame_limits_bytes[slot] = Arc::default();
        self.up[slot] = Arc::default();
        if let Some(divert_taps) = &mut self.divert_taps {
            divert_taps.set_new_peer(slot);
        }
    }

    /// Bounds the source addresses of a port's VMs, and fixes their MAC addresses to it.
    pub fn allow_sources(&mut self, slot: usize, configured: &PortConfig) {
        let (mut table, location) = (self.table.write(), Location::Port(slot as u16));
        table.unfix(location);
        for mac in &configured.sources.macs {
            table.fix(*mac, location);
        }
        table.set_quota(location, configured.quota);
        drop(table);
        if let Some(Some(port)) = self.ports.get_mut(slot) {
            port.sources = configured.sources.clone();
        }
    }

    /// Takes from the configuration which peers the link relays between, and which are behind hubs.
    pub fn set_relayed(&mut self, config: &Config, peers: &Slots) {
        let relayed = config.peers.iter().filter(|peer| peer.relay);
        let slots = relayed.filter_map(|peer| peers.of(&peer.name));
        let behind =
            |peer: &PeerConfig| Some((peers.of(&peer.name)?, peers.of(peer.via.as_ref()?)?));
        let behind: Vec<_> = config.peers.iter().filter_map(behind).collect();
        self.hubs = vec![None; peers.len()];
        for &(peer, hub) in &behind {
            self.hubs[peer] = Some(hub);
        }
        let mut table = self.table.write();
        table.set_relayed(slots.map(|slot| slot as u16));
        table.set_hubs(behind.into_iter().map(|(peer, hub)| (peer as u16, hub as u16)));
    }

    /// The hub that a peer is behind.
    pub fn hub_of(&self, peer: usize) -> Option<usize> {
        self.hubs.get(peer).copied().flatten()
    }

    /// Peers behind a hub.
    pub fn behind(&self, hub: usize) -> impl Iterator<Item = usize> {
        let all = self.hubs.iter().enumerate();
        all.filter(move |(_, of)| **of == Some(hub)).map(|(peer, _)| peer)
    }

    /// Whether a peer is the hub of others.
    pub fn is_hub(&self, peer: usize) -> bool {
        self.behind(peer).next().is_some()
    }

    /// The peer behind a hub that has a label.
    pub fn labelled(&self, hub: usize, label: u16) -> Option<usize> {
        let peer = self.pairs.peer_of_label(label)?;
        (self.hub_of(peer) == Some(hub)).then_some(peer)
    }

    /// Whether a peer, also one of another pair, has a session for its frames.
    pub fn is_up(&self, peer: usize) -> bool {
        self.up.get(peer).is_some_and(|up| up.load(Ordering::Relaxed))
    }

    pub fn set_up(&self, peer: usize, is_up: bool) {
        if let Some(up) = self.up.get(peer) {
            up.store(is_up, Ordering::Relaxed);
        }
    }

    /// See [`set_frame_limit`](Self::set_frame_limit).
    pub fn frame_limit(&self, peer: usize) -> Option<usize> {
        let limit = self.frame_limits_bytes.get(peer)?.load(Ordering::Relaxed);
        (limit > 0).then_some(limit)
    }

    /// The MSS clamp of TCP to a peer, as a frame length; `None`: no clamp.
    pub fn set_frame_limit(&self, peer: usize, bytes: Option<usize>) {
        if let Some(limit) = self.frame_limits_bytes.get(peer) {
            limit.store(bytes.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Writes a frame to a local port.
    pub fn write_to_port(&self, slot: usize, frame: &Frame<'_>) {
        let Some(port) = self.port(slot) else { return };
        port.write(frame);
    }

    /// Counts a frame of a port that was not copied to peers, because its source floods too much.
    pub fn count_flood(&self, slot: usize) {
        if let Some(port) = self.port(slot) {
            port.stats.flood_in.add(1);
        }
    }

    /// Counts a frame of a port that has as many addresses as it may have.
    pub fn count_too_many(&self, slot: usize) {
        if let Some(port) = self.port(slot) {
            port.stats.too_many_in.add(1);
        }
    }

    /// Nanoseconds since the link began.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}
