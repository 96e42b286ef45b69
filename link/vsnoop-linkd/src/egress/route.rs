//! Stage `route`: ports and peers that get a frame.

use super::Egress;
use super::peer_sender::PeerSender;
use crate::frames::frame::Frame;
use vsnoop_link::forwarding::{DropReason, ForwardingDecision, Location, Scope};
use vsnoop_link::slots::{FrameSource, PeerSlot, PortSlot};
use vsnoop_link::wire::item::Way;

impl Egress {
    /// Sends a frame to where it belongs.
    pub(super) fn route(&mut self, source: FrameSource, frame: Frame<'_>, now_ns: u64) {
        match source {
            FrameSource::Port(port) => self.route_by_table(port, &frame, now_ns),
            FrameSource::DivertTap(tap) => {
                let frame = frame.by(Way::Diverted);
                let taps = self.shared.divert_taps.as_ref();
                // A frame that no hook sent, the host's own noise, goes nowhere.
                if let Some(peer) = taps.and_then(|taps| taps.peer_of(tap, &frame)) {
                    self.send_to_peer(source, peer, &frame, now_ns);
                }
            }
            // It was routed where it was received.
            FrameSource::Peer(_) => {}
        }
    }

    fn route_by_table(&mut self, from: PortSlot, frame: &Frame<'_>, now_ns: u64) {
        if !self.shared.find_port(from).is_some_and(|port| port.allows(frame)) {
            return;
        }
        let (source, location) = (FrameSource::Port(from), Location::Port(from));
        let decision =
            self.shared.table.forward_frame(frame.start(), frame.bytes, location, now_ns);
        match decision {
            ForwardingDecision::To(to) => {
                self.send_to_location(source, self.next_hop(to), frame, now_ns);
            }
            ForwardingDecision::Both(a, b) => {
                let (a, b) = (self.next_hop(a), self.next_hop(b));
                self.send_to_location(source, a, frame, now_ns);
                if a != b {
                    self.send_to_location(source, b, frame, now_ns);
                }
            }
            ForwardingDecision::Flood(scope) => self.flood_frame(from, &scope, frame, now_ns),
            ForwardingDecision::Drop(DropReason::TooMany) => self.shared.count_too_many(from),
            ForwardingDecision::Drop(reason) => self.shared.stats.count_drop(reason),
        }
    }

    fn flood_frame(&mut self, from: PortSlot, scope: &Scope, frame: &Frame<'_>, now_ns: u64) {
        for (slot, port) in self.shared.all_ports() {
            if from != slot && scope.includes(Location::Port(slot)) {
                port.write(frame);
            }
        }
        if *scope == Scope::Ports {
            self.shared.count_flood(from);
        }
        let source = FrameSource::Port(from);
        // A hub sends it to all peers behind it, also those with a direct path: once.
        let (mut hubs, mut others) = (Vec::new(), Vec::new());
        for peer in self.senders.slots() {
            if !scope.includes(Location::Peer(peer)) {
                continue;
            }
            // There is a direct path, and the hub does not stand in for it.
            let is_alone =
                self.senders.get(peer).is_some_and(PeerSender::is_apart) && self.is_up(peer);
            let hub = self.shared.hub_of(peer).filter(|hub| self.is_up(*hub) && !is_alone);
            match hub {
                None if self.shared.serves(peer) => self.clamp(source, peer, frame, now_ns),
                None => others.push(peer),
                Some(hub) if scope.includes(Location::Peer(hub)) => {}
                Some(hub) if hubs.contains(&hub) => {}
                Some(hub) => hubs.push(hub),
            }
        }
        for hub in hubs {
            self.send_to_peer(source, hub, frame, now_ns);
        }
        self.hand_off(source, others, frame);
    }

    fn is_up(&self, peer: PeerSlot) -> bool {
        self.shared.is_up(peer)
    }

    /// A peer behind a hub is reached by the hub while there is no direct path.
    fn next_hop(&self, to: Location) -> Location {
        let Location::Peer(peer) = to else { return to };
        let hub = self.shared.hub_of(peer).filter(|_| !self.is_up(peer));
        hub.map_or(to, Location::Peer)
    }

    fn send_to_location(
        &mut self,
        source: FrameSource,
        to: Location,
        frame: &Frame<'_>,
        now_ns: u64,
    ) {
        match to {
            Location::Peer(peer) => self.send_to_peer(source, peer, frame, now_ns),
            Location::Port(port) => self.shared.write_to_port(port, frame),
        }
    }

    /// Goes on with the next stage, here or in the pair that serves the peer.
    fn send_to_peer(
        &mut self,
        source: FrameSource,
        peer: PeerSlot,
        frame: &Frame<'_>,
        now_ns: u64,
    ) {
        if self.shared.serves(peer) {
            self.clamp(source, peer, frame, now_ns);
        } else {
            self.hand_off(source, vec![peer], frame);
        }
    }

    /// Copies a frame to the pairs that serve these peers.
    fn hand_off(&mut self, source: FrameSource, peers: Vec<PeerSlot>, frame: &Frame<'_>) {
        for peer in self.handoff.push(source, peers, frame) {
            if let Some(stats) = self.shared.peers.get(peer) {
                stats.dropped_full.add(1, frame.bytes as u64);
            }
        }
    }
}
