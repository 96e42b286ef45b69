//! The paths to peers: addresses, sizes of datagrams, measurements for the compressor.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::ControlThread;
use super::peer_entry::{PeerEntry, headers_bytes};
use crate::egress;
use crate::io::udp::Endpoints;
use vsnoop_link::session::batches::BatchChange;
use vsnoop_link::session::{PeerEvent, SessionId};
use vsnoop_link::slots::PeerSlot;
use vsnoop_link::wire::item::FRAME_HEADER_BYTES;
use vsnoop_link::wire::seal::HEADER_BYTES;

/// How often the egress thread hears of the path.
const PATH_EVERY: Duration = Duration::from_secs(1);
/// Fewer say nothing about the share that is lost.
const FEW_PACKETS: f64 = 50.0;

impl ControlThread {
    /// The kernel refused a datagram of `bytes` (EMSGSIZE): an MTU may be lower now.
    pub(super) fn note_too_long(&mut self, peer: PeerSlot, session: SessionId, bytes: usize) {
        let known = &mut self.peers[peer];
        let Some(installed) = known.installed.get(&session).filter(|_| known.used == Some(session))
        else {
            return;
        };
        let size = bytes + headers_bytes(installed.address);
        known.route_asked = None;
        let size_bytes = size.min(u16::MAX.into()) as u16;
        self.tell_peer(peer, PeerEvent::TooBig { size_bytes });
    }

    /// Tells the compressor what the state machine measured of the path; about once a second.
    pub(super) fn tell_path(&mut self, peer: PeerSlot) {
        let known = &mut self.peers[peer];
        let Some(used) = known.used else { return };
        if known.path_told.elapsed() < PATH_EVERY {
            return;
        }
        known.path_told = Instant::now();
        let delivery = known.machine.status().delivery;
        let (lost_before, delivered_before) = known.path_counts;
        known.path_counts = (delivery.lost_out_packets, delivery.delivered_packets);
        let lost = delivery.lost_out_packets.saturating_sub(lost_before);
        let delivered = delivery.delivered_packets.saturating_sub(delivered_before);
        let is_ordered =
            known.installed.get(&used).is_none_or(|session| session.transport.is_ordered());
        if self.gso && !is_ordered {
            let change = known.batches.add(lost, delivered, self.shared.now_ns());
            change.iter().for_each(|change| log_batch_change(&known.config.name, *change));
        }
        let gso = self.gso && known.batches.are_on();
        let (lost, delivered) = (lost as f64, delivered as f64);
        if lost + delivered >= FEW_PACKETS {
            // Smoothed over some seconds: a burst is not a bad path.
            known.loss += (lost / (lost + delivered) - known.loss) / 4.0;
        }
        let told = (used, known.loss, delivery.path_bytes_per_s, gso);
        // Otherwise an idle peer would wake the egress thread each second.
        if known.path_said == Some(told) {
            return;
        }
        known.path_said = Some(told);
        let (session, loss, bytes_per_s) = (used, known.loss, delivery.path_bytes_per_s);
        self.orders
            .order_egress(peer, egress::Order::Path { peer, session, loss, bytes_per_s, gso });
    }

    /// The addresses for what a session sends to `address`. If the peer has dialled, it expects
    /// answers from the address that it has called; if this host has, any local address will do.
    pub(super) fn find_ends(
        &self,
        peer: PeerSlot,
        id: SessionId,
        address: SocketAddr,
    ) -> Endpoints {
        let installed = self.peers[peer].installed.get(&id);
        let called = installed.filter(|installed| !installed.dialled);
        let heard = called.and_then(|installed| installed.heard);
        let from_there = heard.filter(|heard| heard.peer == address);
        Endpoints { peer: address, local: from_there.and_then(|heard| heard.local) }
    }

    /// Tells the data thread how long datagrams may be.
    pub(super) fn tell_limit(&self, peer: PeerSlot) {
        let known = &self.peers[peer];
        let Some((id, installed)) = known.used.and_then(|id| Some((id, known.installed.get(&id)?)))
        else {
            return;
        };
        let bytes =
            usize::from(known.path_mtu_bytes).saturating_sub(headers_bytes(installed.address));
        self.orders.order_egress(peer, egress::Order::Limit { peer, session: id, bytes });
        self.bound_frames(peer);
    }

    /// Bounds the MSS of TCP by the size of datagrams to a peer, so that no frame has to be split.
    pub(super) fn bound_frames(&self, peer: PeerSlot) {
        let room = |known: &PeerEntry| {
            let installed = known.installed.get(&known.used?)?;
            if installed.transport.is_ordered() {
                return None;
            }
            let around = headers_bytes(installed.address)
                + HEADER_BYTES
                + installed.encrypted_bytes
                + FRAME_HEADER_BYTES;
            Some(usize::from(known.path_mtu_bytes).saturating_sub(around))
        };
        let limit = room(&self.peers[peer]).filter(|_| self.clamp_mss);
        self.shared.set_frame_limit(peer, limit);
    }
}

fn log_batch_change(peer: &str, change: BatchChange) {
    match change {
        BatchChange::TriedWithout => info!(
            "peer {peer}: the path loses many datagrams: for a trial they leave one by one, without \
             UDP GSO"
        ),
        BatchChange::Off { for_ns } => warn!(
            "peer {peer}: datagrams that leave together (UDP GSO) fail on the way, single ones do not: \
             they leave one by one for {} minutes; link.gso = false is for good",
            for_ns / 60_000_000_000
        ),
        BatchChange::On => info!("peer {peer}: datagrams leave together (UDP GSO)"),
    }
}
