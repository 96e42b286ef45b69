//! The thread that decides: it keeps the peers' state machines, makes sessions, answers commands.
//!
//! It never touches a frame. What the data threads see of interest comes as [`Event`]s; what the state
//! machines want goes to them as orders.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tracing::{debug, info, warn};

use super::event::Event;
use super::config::{Config, Peer as PeerConfig, Transport};
use super::counts::SessionCounts;
use super::establish::{self, Incoming, Introduction, Made};
use super::io::wake;
use super::shared::Shared;
use super::{egress, ingress};
use crate::handshake::{self, Answer, Established, Guard, Hello, Purpose, Refusal, RefusalKind, Role};
use crate::identity::{Acceptor, Dialer, PeerId, PublicKey};
use crate::session::{
    Action, End, Event as PeerEvent, Message, Peer, SessionId, SessionInfo, Settings,
};
use crate::wire::item::SESSION;

/// Lanes that came before the control connection's end was seen here; more are let go.
const STRAYS: usize = 64;
/// A session that still waits for lanes after so long is given up.
const LANES_IN: Duration = Duration::from_secs(10);

/// A session that still waits for lanes.
struct Incomplete {
    control: Established,
    from: SocketAddr,
    lanes: Vec<Established>,
    since: Instant,
}

/// One peer.
struct Known {
    config: PeerConfig,
    machine: Peer,
    dialer: Arc<Dialer>,
    /// Made and not yet installed.
    made: HashMap<SessionId, Box<Made>>,
    installed: HashMap<SessionId, Installed>,
    incomplete: Vec<Incomplete>,
    is_up: bool,
}

struct Installed {
    counts: Arc<SessionCounts>,
    v6: bool,
    version: u16,
    transport: Transport,
}

pub struct Control {
    shared: Arc<Shared>,
    introduction: Introduction,
    acceptor: Acceptor,
    peers: Vec<Known>,
    names: HashMap<PeerId, usize>,
    strays: Vec<(Instant, Established)>,
    next_session: u64,
    egress: wake::Sender<egress::Order>,
    ingress: wake::Sender<ingress::Order>,
    events: wake::Sender<Event>,
    guard: Guard,
}

/// What [`Control::new`] needs beside the configuration.
pub struct Parts {
    pub shared: Arc<Shared>,
    pub acceptor: Acceptor,
    pub dialers: Vec<Dialer>,
    pub ours: PublicKey,
    pub egress: wake::Sender<egress::Order>,
    pub ingress: wake::Sender<ingress::Order>,
    pub events: wake::Sender<Event>,
}

impl Control {
    pub fn new(config: &Config, parts: Parts) -> Self {
        let Parts { shared, acceptor, dialers, ours: _, egress, ingress, events } = parts;
        let introduction = Introduction {
            network: config.network.clone(),
            instance: fastrand::u64(..),
            mtu_bytes: config.mtu_bytes,
        };
        let peers: Vec<_> = config
            .peers
            .iter()
            .zip(dialers)
            .map(|(peer, dialer)| Known {
                config: peer.clone(),
                machine: Peer::new(Settings::default(), fastrand::u64(..), shared.now_ns()),
                dialer: Arc::new(dialer),
                made: HashMap::new(),
                installed: HashMap::new(),
                incomplete: Vec::new(),
                is_up: false,
            })
            .collect();
        let names = config
            .peers
            .iter()
            .enumerate()
            .map(|(index, peer)| (PeerId::new(&peer.name), index))
            .collect();
        Self {
            shared,
            introduction,
            acceptor,
            peers,
            names,
            strays: Vec::new(),
            next_session: 1,
            egress,
            ingress,
            events,
            guard: Guard::default(),
        }
    }
}
