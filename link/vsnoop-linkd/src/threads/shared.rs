//! State that the threads of a link share: the forwarding table, the ports, counters, the clock.
//!
//! A [`Shared`] never changes. A reload makes another one of the same parts and new ones, which
//! each thread gets by an order: no thread waits for a lock on its way to a port. Each pair of
//! threads has a view with its own queue of each port ([`Shared::for_pair`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::config::{Config, PeerConfig, PortConfig};
use crate::counters::stats::{LinkStats, PeerStats};
use crate::divert::taps::DivertTaps;
use crate::frames::frame::Frame;
use crate::io::udp::UdpSocket;
use crate::io::udp_port::UdpPort;
use crate::ports::counted_port::CountedPort;
use crate::ports::own_packets::Own;
use crate::threads::clock::Clock;
use crate::threads::pairs::{PairSlot, Pairs};
use crate::threads::slots::{BySlot, Slots};
use vsnoop_link::forwarding::{self, Location};
use vsnoop_link::introduction::Label;
use vsnoop_link::slots::{PeerSlot, PortSlot, Slot};

#[derive(Clone)]
pub struct Shared {
    pub clock: Clock,
    pub table: Arc<forwarding::SharedTable>,
    /// `None`: the port was removed.
    pub ports: BySlot<PortSlot, Option<CountedPort>>,
    /// `None` without diversion.
    pub divert_taps: Option<DivertTaps>,
    /// Also of those that were removed.
    pub peers: BySlot<PeerSlot, Arc<PeerStats>>,
    /// Sends messages; sockets that send frames join by it.
    pub udp: Arc<UdpSocket>,
    pub pairs: Pairs,
    /// The pair of threads whose view this is.
    pub pair: PairSlot,
    /// By pair.
    receivers: Arc<BySlot<PairSlot, Arc<UdpSocket>>>,
    /// Which packets are the link's own.
    pub own: Arc<Own>,
    pub stats: Arc<LinkStats>,
    /// The hub that each peer is behind.
    hubs: BySlot<PeerSlot, Option<PeerSlot>>,
    /// The longest frame that each peer takes without another cut; 0: no limit.
    frame_limits_bytes: BySlot<PeerSlot, Arc<AtomicUsize>>,
    /// Whether the pair that serves the peer has a session for its frames.
    up: BySlot<PeerSlot, Arc<AtomicBool>>,
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
            pair: PairSlot::FIRST,
            receivers: Arc::new(receivers.into_iter().collect()),
            own: Arc::new(own),
            stats: Arc::default(),
            hubs: BySlot::default(),
            frame_limits_bytes: (0..peers).map(|_| Arc::default()).collect(),
            up: (0..peers).map(|_| Arc::default()).collect(),
        }
    }

    /// The view of a pair of threads.
    pub fn for_pair(&self, pair: PairSlot) -> Self {
        let view = |port: &Option<CountedPort>| port.as_ref().map(|port| port.for_pair(pair));
        Self { pair, ports: self.ports.values().map(view).collect(), ..self.clone() }
    }

    /// The socket by which this pair receives.
    pub fn receiver(&self) -> &Arc<UdpSocket> {
        &self.receivers[self.pair]
    }

    /// Whether this pair serves the peer.
    pub fn serves(&self, peer: PeerSlot) -> bool {
        self.pairs.pair_of(peer) == self.pair
    }

    /// Whether this pair reads the port: each reads its own queue, and one of them a port that has
    /// one only.
    pub fn reads(&self, slot: impl Slot, port: &CountedPort) -> bool {
        port.has_queues() || self.pairs.pair_of(slot) == self.pair
    }

    /// The port in this slot.
    pub fn find_port(&self, slot: PortSlot) -> Option<&CountedPort> {
        self.ports.get(slot)?.as_ref()
    }

    /// All ports, with their slots.
    pub fn all_ports(&self) -> impl Iterator<Item = (PortSlot, &CountedPort)> {
        self.ports.iter().filter_map(|(slot, port)| Some((slot, port.as_ref()?)))
    }

    /// Makes room for the counters of a peer in this slot, from zero.
    pub fn set_new_peer(&mut self, slot: PeerSlot) {
        self.peers.make_room(slot, Arc::default);
        self.frame_limits_bytes.make_room(slot, Arc::default);
        self.up.make_room(slot, Arc::default);
        self.peers[slot] = Arc::default();
        self.frame_limits_bytes[slot] = Arc::default();
        self.up[slot] = Arc::default();
        if let Some(divert_taps) = &mut self.divert_taps {
            divert_taps.set_new_peer(slot);
        }
    }

    /// Bounds the source addresses of a port's VMs, and fixes their MAC addresses to it.
    pub fn allow_sources(&mut self, slot: PortSlot, configured: &PortConfig) {
        let (mut table, location) = (self.table.write(), Location::Port(slot));
        table.unfix_addresses(location);
        for mac in &configured.sources.macs {
            table.fix_address(*mac, location);
        }
        table.set_quota(location, configured.quota);
        drop(table);
        if let Some(Some(port)) = self.ports.get_mut(slot) {
            port.sources = configured.sources.clone();
        }
    }

    /// Takes from the configuration which peers the link relays between, and which are behind hubs.
    pub fn set_relayed(&mut self, config: &Config, peers: &Slots<PeerSlot>) {
        let relayed = config.peers.iter().filter(|peer| peer.relay);
        let slots = relayed.filter_map(|peer| peers.find(&peer.name));
        let behind =
            |peer: &PeerConfig| Some((peers.find(&peer.name)?, peers.find(peer.via.as_ref()?)?));
        let behind: Vec<_> = config.peers.iter().filter_map(behind).collect();
        self.hubs = peers.all().map(|_| None).collect();
        for &(peer, hub) in &behind {
            self.hubs[peer] = Some(hub);
        }
        let mut table = self.table.write();
        table.set_relayed(slots);
        table.set_hubs(behind);
    }

    /// The hub that a peer is behind.
    pub fn hub_of(&self, peer: PeerSlot) -> Option<PeerSlot> {
        self.hubs.get(peer).copied().flatten()
    }

    /// Peers behind a hub.
    pub fn peers_behind(&self, hub: PeerSlot) -> impl Iterator<Item = PeerSlot> {
        self.hubs.iter().filter(move |(_, own)| **own == Some(hub)).map(|(peer, _)| peer)
    }

    /// Whether a peer is the hub of others.
    pub fn is_hub(&self, peer: PeerSlot) -> bool {
        self.peers_behind(peer).next().is_some()
    }

    /// The peer behind a hub that has a label.
    pub fn find_labelled(&self, hub: PeerSlot, label: Label) -> Option<PeerSlot> {
        let peer = self.pairs.peer_of_label(label)?;
        (self.hub_of(peer) == Some(hub)).then_some(peer)
    }

    /// Whether a peer, also one of another pair, has a session for its frames.
    pub fn is_up(&self, peer: PeerSlot) -> bool {
        self.up.get(peer).is_some_and(|up| up.load(Ordering::Relaxed))
    }

    pub fn set_up(&self, peer: PeerSlot, is_up: bool) {
        if let Some(up) = self.up.get(peer) {
            up.store(is_up, Ordering::Relaxed);
        }
    }

    /// See [`set_frame_limit`](Self::set_frame_limit).
    pub fn frame_limit(&self, peer: PeerSlot) -> Option<usize> {
        let limit = self.frame_limits_bytes.get(peer)?.load(Ordering::Relaxed);
        (limit > 0).then_some(limit)
    }

    /// The MSS clamp of TCP to a peer, as a frame length; `None`: no clamp.
    pub fn set_frame_limit(&self, peer: PeerSlot, bytes: Option<usize>) {
        if let Some(limit) = self.frame_limits_bytes.get(peer) {
            limit.store(bytes.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Writes a frame to a local port.
    pub fn write_to_port(&self, slot: PortSlot, frame: &Frame<'_>) {
        let Some(port) = self.find_port(slot) else { return };
        port.write(frame);
    }

    /// Counts a frame of a port that was not copied to peers, because its source floods too much.
    pub fn count_flood(&self, slot: PortSlot) {
        if let Some(port) = self.find_port(slot) {
            port.stats.flood_in.add(1);
        }
    }

    /// Counts a frame of a port that has as many addresses as it may have.
    pub fn count_too_many(&self, slot: PortSlot) {
        if let Some(port) = self.find_port(slot) {
            port.stats.too_many_in.add(1);
        }
    }

    /// Nanoseconds since the link began.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}
