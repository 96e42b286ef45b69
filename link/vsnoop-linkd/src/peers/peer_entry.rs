//! The control thread's state of one peer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::config::{Config, PeerConfig, Transport, TrustConfig};
use crate::counters::counts::SessionCounts;
use crate::handshake::establish::Made;
use crate::handshake::tcp_handshake::Established;
use crate::handshake::tcp_path::TcpPath;
use crate::io::udp::Endpoints;
use crate::threads::pairs::Pairs;
use vsnoop_link::compress::{CompressionLimits, DecoderMemory};
use vsnoop_link::identity::{Initiator, Proof, PublicKey};
use vsnoop_link::introduction::{About, Contact, ContactSettings};
use vsnoop_link::session::batches::Batches;
use vsnoop_link::session::{Peer, PeerSettings, PeerSnapshot, SessionId};
use vsnoop_link::slots::PeerSlot;

/// How often the host is asked how large packets to a peer may be.
const ROUTE_EVERY: Duration = Duration::from_secs(60);
/// The minimum MTU of IPv6 (RFC 8200, section 5): assumed until the path's MTU was found.
const LEAST_MTU_BYTES: u16 = 1280;
/// A direct path beside a hub is probed so often, and is left after so much silence.
const DIRECT_PROBE_NS: u64 = 500_000_000;
const DIRECT_DEAD_NS: u64 = 1_500_000_000;
const ORDINARY_MTU_BYTES: u16 = 1500;
/// IP and UDP header.
const V4_HEADERS_BYTES: usize = 20 + 8;
const V6_HEADERS_BYTES: usize = 40 + 8;

/// A session that still waits for data connections.
pub struct Incomplete {
    pub control: Established,
    pub from: SocketAddr,
    pub connections: Vec<Established>,
    /// Since the last of them, or the beginning.
    pub since: Instant,
}

/// A session that the data threads have.
pub struct Installed {
    pub counts: Arc<SessionCounts>,
    /// We have called the peer.
    pub dialled: bool,
    pub address: SocketAddr,
    /// The addresses of the datagram that was received last.
    pub heard: Option<Endpoints>,
    pub transport: Transport,
    pub version: u16,
    pub encrypted_bytes: usize,
    /// See [`PeerEntry::takes`].
    pub takes: Vec<IpNet>,
    /// See [`PeerEntry::mtu_bytes`].
    pub mtu_bytes: u16,
    /// The peer's proof of identity.
    pub proof: Proof,
    /// The instance of the peer's process.
    pub instance: u64,
}

/// One peer.
pub struct PeerEntry {
    /// The number of the entry; never used twice.
    pub serial: u64,
    /// The configuration has it no more: its machine is closed, and its number may be given to
    /// another.
    pub is_removed: bool,
    pub config: PeerConfig,
    pub machine: Peer,
    /// If it is behind a hub.
    pub contact: Option<Contact>,
    /// Its process, as of the last session in use.
    pub instance: Option<u64>,
    pub settings: PeerSettings,
    pub initiator: Arc<Initiator>,
    /// See [`crate::handshake::establish::dial`].
    pub failed: Arc<Mutex<Option<SocketAddr>>>,
    pub tcp_path: Arc<TcpPath>,
    /// Memory of its decoders in all sessions.
    pub memory: Arc<DecoderMemory>,
    pub made: HashMap<SessionId, Box<Made>>,
    pub installed: HashMap<SessionId, Installed>,
    pub incomplete: Vec<Incomplete>,
    pub path_mtu_bytes: u16,
    /// For whose packets, and when, the host was asked how large they may be.
    pub route_asked: Option<(SocketAddr, Instant)>,
    pub path_told: Instant,
    /// Lost and delivered, when it was told.
    pub path_counts: (u64, u64),
    /// Share of the datagrams.
    pub loss: f64,
    pub batches: Batches,
    /// Last report to the egress thread: session, loss, bytes per second, and whether it may use
    /// UDP GSO.
    pub path_said: Option<(SessionId, f64, Option<u64>, bool)>,
    pub used: Option<SessionId>,
    /// The key of its last handshake.
    pub shown_key: Option<PublicKey>,
    /// The largest dictionary that rules of the file have for it, bytes.
    pub dictionary_bytes: Option<u32>,
    /// The limits of the peer that were warned of.
    pub accepts_said: Option<CompressionLimits>,
    /// The MTU of the peer that was warned of.
    pub mtu_bytes_said: Option<u16>,
}

/// The parts of a new entry beside the configuration.
pub struct NewPeer {
    pub slot: PeerSlot,
    pub serial: u64,
    pub initiator: Initiator,
    /// This host's key.
    pub ours: PublicKey,
    /// The pairs of the link.
    pub pairs: Pairs,
}

impl PeerEntry {
    /// A peer that was just configured.
    pub fn new(peer: &PeerConfig, link: &Config, new: NewPeer, now_ns: u64) -> Self {
        let NewPeer { slot, serial, initiator, ours, pairs } = new;
        let settings = make_settings(peer, link, is_favoured(&peer.trust, None, ours));
        Self {
            serial,
            is_removed: false,
            config: peer.clone(),
            machine: Peer::new(settings.clone(), fastrand::u64(..), now_ns),
            contact: make_contact(peer, slot, pairs),
            instance: None,
            settings,
            initiator: Arc::new(initiator),
            failed: Arc::default(),
            tcp_path: Arc::default(),
            memory: Arc::new(DecoderMemory::new(peer.decoder_bytes_max())),
            made: HashMap::new(),
            installed: HashMap::new(),
            incomplete: Vec::new(),
            path_mtu_bytes: LEAST_MTU_BYTES,
            route_asked: None,
            path_told: Instant::now(),
            path_counts: (0, 0),
            loss: 0.0,
            batches: Batches::default(),
            path_said: None,
            used: None,
            shown_key: None,
            dictionary_bytes: link.compress.largest_dictionary(&peer.name),
            accepts_said: None,
            mtu_bytes_said: None,
        }
    }

    /// Version of the protocol and transport of the session in use.
    pub fn session(&self) -> Option<(u16, Transport)> {
        let installed = self.installed.get(&self.used?)?;
        Some((installed.version, installed.transport))
    }

    /// The prefixes to which the peer lets diverted packets in; `None` while there is no session.
    pub fn takes(&self) -> Option<&[IpNet]> {
        Some(&self.installed.get(&self.used?)?.takes)
    }

    /// The MTU of the VMs' network there; `None` while there is no session.
    pub fn mtu_bytes(&self) -> Option<u16> {
        Some(self.installed.get(&self.used?)?.mtu_bytes)
    }

    /// Until when what the peer has shown of itself holds, in seconds since the epoch.
    pub fn holds_until_s(&self) -> Option<u64> {
        self.installed.get(&self.used?)?.proof.until_s()
    }

    /// When there is something to do for it.
    pub fn deadline_ns(&self) -> u64 {
        let contact_ns = self.contact.as_ref().map_or(u64::MAX, Contact::deadline_ns);
        self.machine.deadline_ns().min(contact_ns)
    }

    /// Whether it is whom another host asks for.
    pub fn is_about(&self, about: &About) -> bool {
        match (about, &self.config.trust) {
            (About::Keys(asked), TrustConfig::Keys(keys)) => {
                asked.iter().any(|key| keys.contains(key))
            }
            (About::Subject(asked), TrustConfig::Subject(subject)) => asked == subject,
            // It has shown its key, under its name.
            (About::Keys(asked), TrustConfig::Subject(_)) => {
                self.shown_key.is_some_and(|key| asked.contains(&key))
            }
            (About::Subject(_), TrustConfig::Keys(_)) => false,
        }
    }

    pub fn status(&self) -> PeerSnapshot {
        self.machine.status()
    }

    /// The MTU of the way to the peer, when it is time to ask the host for it: it is at another
    /// address, or was asked for long ago.
    pub fn ask_route(&mut self) -> Option<u16> {
        let installed = self.installed.get(&self.used?)?;
        let to = installed.address;
        let is_answered = |(asked, when): (SocketAddr, Instant)| {
            asked.ip() == to.ip() && when.elapsed() < ROUTE_EVERY
        };
        if installed.transport.is_ordered() || self.route_asked.is_some_and(is_answered) {
            return None;
        }
        self.route_asked = Some((to, Instant::now()));
        // No ICMP message changes that: probes find how much less the path takes. An interface of
        // which nothing is known is an Ethernet's.
        let bytes = vsnoop_netdev::route::mtu(to).ok().flatten();
        Some(bytes.map_or(ORDINARY_MTU_BYTES, |bytes| bytes.try_into().unwrap_or(u16::MAX)))
    }
}

/// Whether this host has the larger key. A peer that has not shown its key yet, and is known by its
/// subject, counts as larger until it has.
pub fn is_favoured(theirs: &TrustConfig, shown: Option<PublicKey>, ours: PublicKey) -> bool {
    let key = match theirs {
        TrustConfig::Keys(keys) => {
            shown.filter(|key| keys.contains(key)).or_else(|| keys.first().copied())
        }
        TrustConfig::Subject(_) => shown,
    };
    key.is_some_and(|key| ours > key)
}

/// A peer behind a hub.
pub fn make_contact(peer: &PeerConfig, slot: PeerSlot, pairs: Pairs) -> Option<Contact> {
    peer.via.as_ref()?;
    let about = match &peer.trust {
        TrustConfig::Keys(keys) => About::Keys(keys.clone()),
        TrustConfig::Subject(subject) => About::Subject(subject.clone()),
    };
    Some(Contact::new(ContactSettings { label: pairs.peer_label(slot)?, about }))
}

/// Settings of a peer's state machine.
pub fn make_settings(peer: &PeerConfig, link: &Config, is_favoured: bool) -> PeerSettings {
    let dead_ns = link.dead_after.as_nanos() as u64;
    let all = PeerSettings {
        favoured: is_favoured,
        largest_packet_bytes: (!peer.transport.is_ordered()).then_some(LEAST_MTU_BYTES),
        dead_ns,
        rekey_ns: link.rekey.as_nanos() as u64,
        keys_end_ns: 2 * link.rekey.as_nanos() as u64,
        address: peer.called(),
        ..PeerSettings::default()
    };
    if peer.via.is_none() {
        return all;
    }
    // Both ends know when they can call: one of them is enough, if they agree which.
    let agrees = matches!(&peer.trust, TrustConfig::Keys(keys) if keys.len() == 1);
    let address = all.address.clone().filter(|_| is_favoured || !agrees);
    // The relay stands in for a path that fails, so it need not fail for long.
    let (probe_ns, dead_ns) = (DIRECT_PROBE_NS, dead_ns.min(DIRECT_DEAD_NS));
    PeerSettings { address, probe_ns, dead_ns, ..all }
}

/// Message about a peer with another `link.mtu`.
pub fn other_mtu(ours: u16, theirs: u16) -> String {
    format!("link.mtu is {ours} here and {theirs} there")
}

/// Bytes of a datagram to or from an address before its payload.
pub fn headers_bytes(address: SocketAddr) -> usize {
    if address.is_ipv4() { V4_HEADERS_BYTES } else { V6_HEADERS_BYTES }
}
