//! Two peers, their daemons in a few lines, and a network between them that loses, doubles, delays,
//! reorders and cuts, under a simulated clock.
//!
//! A handshake is what the daemon's is: two round trips after which the acceptor has the session,
//! and half a round trip later the initiator, unless the network is cut meanwhile.

use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;

use super::*;

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1000 * MS;
/// IP and UDP headers and the seal of a packet.
const OVERHEAD_BYTES: u16 = 64;
/// Where handshakes come from; datagrams come from elsewhere.
const HANDSHAKE_PORT: u16 = 50_000;

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    A,
    B,
}

impl Side {
    pub fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

/// Faults of one direction of the network.
#[derive(Clone, Copy, Debug)]
pub struct DirectionFaults {
    pub delay_ns: u64,
    /// Up to so much more, at random, so that packets overtake each other.
    pub jitter_ns: u64,
    pub loss_percent: u8,
    pub double_percent: u8,
    /// Larger packets vanish.
    pub mtu_bytes: u16,
    /// Everything vanishes.
    pub cut: bool,
}

impl Default for DirectionFaults {
    fn default() -> Self {
        Self {
            delay_ns: 10 * MS,
            jitter_ns: 0,
            loss_percent: 0,
            double_percent: 0,
            mtu_bytes: 1500,
            cut: false,
        }
    }
}

/// A NAT before an end. The hub sees the end at its `address`.
#[derive(Clone, Debug, Default)]
pub struct Nat {
    /// It has another port for each destination but the hub.
    pub is_symmetric: bool,
    /// Ports of datagrams, by destination: what comes from there to here is let in.
    pub mappings: BTreeMap<SocketAddr, u16>,
}

#[derive(Clone, Debug)]
enum Body {
    Message(Message),
    Data,
}

#[derive(Clone, Debug)]
struct Packet {
    to: SocketAddr,
    from: SocketAddr,
    session: SessionId,
    counter: u64,
    bytes: u16,
    body: Body,
}

#[derive(Clone, Debug)]
enum Event {
    Arrives(Side, Packet),
    /// The acceptor has the session now.
    Accepted(Side, SessionInfo),
    /// The end of a dialling, of an instance.
    Dialled(Side, u64, Result<SessionInfo, DialError>),
    Data(Side),
}

/// The state of a session at an end.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    traffic: SessionTraffic,
    counter: u64,
    highest: u64,
    address: Option<SocketAddr>,
}

/// An end: a peer's state machine and what a daemon does around it.
pub struct SimulatedHost {
    pub peer: Peer,
    pub up: bool,
    pub address: SocketAddr,
    pub nat: Option<Nat>,
    pub instance: u64,
    pub settings: PeerSettings,
    pub used: Option<SessionId>,
    pub reports: Vec<(u64, Report)>,
    pub dials: Vec<u64>,
    pub data_sent: u64,
    pub data_received: u64,
    sessions: BTreeMap<SessionId, Carried>,
    /// The most sessions at once.
    pub most_sessions: usize,
}

impl SimulatedHost {
    /// Packets that it has sent under all its sessions.
    pub fn sent_packets(&self) -> u64 {
        self.sessions.values().map(|carried| carried.traffic.sent_packets).sum()
    }

    fn new(settings: PeerSettings, instance: u64, address: SocketAddr, now_ns: u64) -> Self {
        Self {
            peer: Peer::new(settings.clone(), instance, now_ns),
            up: true,
            address,
            nat: None,
            instance,
            settings,
            used: None,
            reports: Vec::new(),
            dials: Vec::new(),
            data_sent: 0,
            data_received: 0,
            sessions: BTreeMap::new(),
            most_sessions: 0,
        }
    }

    /// Where datagrams to `to` come from.
    fn outside(&mut self, to: SocketAddr) -> SocketAddr {
        let mut from = self.address;
        if let Some(nat) = &mut self.nat {
            let port =
                from.port() + if nat.is_symmetric { 1 + nat.mappings.len() as u16 } else { 0 };
            from.set_port(*nat.mappings.entry(to).or_insert(port));
        }
        from
    }

    fn lets_in(&self, packet: &Packet) -> bool {
        match &self.nat {
            None => packet.to == self.address,
            Some(nat) => {
                packet.to.ip() == self.address.ip()
                    && nat.mappings.get(&packet.from) == Some(&packet.to.port())
            }
        }
    }

    /// Its NAT forgets its mappings, and has others from now on.
    pub fn rebind(&mut self) {
        self.address.set_port(self.address.port() + 1000);
        self.nat.iter_mut().for_each(|nat| nat.mappings.clear());
    }

    /// Times that it went up, or down.
    pub fn ups(&self) -> usize {
        self.reports.iter().filter(|(_, report)| matches!(report, Report::Up { .. })).count()
    }

    pub fn downs(&self) -> usize {
        self.reports.iter().filter(|(_, report)| matches!(report, Report::Down { .. })).count()
    }
}

pub struct World {
    pub now_ns: u64,
    pub a: SimulatedHost,
    pub b: SimulatedHost,
    /// From A to B, and back.
    pub ways: [DirectionFaults; 2],
    pub random: fastrand::Rng,
    /// A hub, which cuts do not concern, passes on handshakes.
    pub introduces: bool,
    /// Each end sends data so often, if it is up.
    pub data_every_ns: Option<u64>,
    pub data_bytes: u16,
    queue: BinaryHeap<(std::cmp::Reverse<(u64, u64)>, usize)>,
    event_of: BTreeMap<usize, Event>,
    order: u64,
    next_session: u64,
}

/// Which ends dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dials {
    A,
    B,
    Both,
}

pub fn settings(largest_packet_bytes: u16) -> PeerSettings {
    PeerSettings { largest_packet_bytes: Some(largest_packet_bytes), ..PeerSettings::default() }
}

impl World {
    pub fn new(seed: u64, dials: Dials, settings: &PeerSettings) -> Self {
        let settings_of = |side, favoured| PeerSettings {
            address: (dials == Dials::Both || dials == side).then(|| "peer".into()),
            favoured,
            ..settings.clone()
        };
        let mut random = fastrand::Rng::with_seed(seed);
        let favoured = random.bool();
        let (a, b) = (settings_of(Dials::A, favoured), settings_of(Dials::B, !favoured));
        let instances = (random.u64(..), random.u64(..));
        Self {
            now_ns: S,
            a: SimulatedHost::new(a, instances.0, "192.0.2.1:7757".parse().unwrap(), S),
            b: SimulatedHost::new(b, instances.1, "192.0.2.2:7757".parse().unwrap(), S),
            ways: [DirectionFaults::default(); 2],
            random,
            introduces: false,
            data_every_ns: None,
            data_bytes: 200,
            queue: BinaryHeap::new(),
            event_of: BTreeMap::new(),
            order: 0,
            next_session: 1,
        }
    }

    pub fn host(&mut self, side: Side) -> &mut SimulatedHost {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    pub fn both_ways(&mut self, change: impl Fn(&mut DirectionFaults)) {
        self.ways.iter_mut().for_each(change);
    }

    fn way(&self, from: Side) -> DirectionFaults {
        self.ways[if from == Side::A { 0 } else { 1 }]
    }

    /// The process is gone, at once.
    pub fn kill(&mut self, side: Side) {
        let host = self.host(side);
        (host.up, host.used) = (false, None);
        host.sessions.clear();
    }

    /// Another process begins.
    pub fn start(&mut self, side: Side) {
        let (now_ns, instance) = (self.now_ns, self.random.u64(..));
        let host = self.host(side);
        host.peer = Peer::new(host.settings.clone(), instance, now_ns);
        (host.up, host.instance) = (true, instance);
        self.give(side, PeerEvent::Tick);
    }

    pub fn give(&mut self, side: Side, event: PeerEvent) {
        let now_ns = self.now_ns;
        let host = self.host(side);
        if !host.up {
            return;
        }
        let counted: Vec<_> = host.sessions.iter().map(|(id, s)| (*id, s.traffic)).collect();
        let mut actions = Vec::new();
        if matches!(event, PeerEvent::Tick | PeerEvent::Message { .. }) {
            for (id, traffic) in counted {
                actions.extend(host.peer.handle_event(PeerEvent::Traffic(id, traffic), now_ns));
            }
        }
        actions.extend(host.peer.handle_event(event, now_ns));
        for action in actions {
            self.act(side, action);
        }
    }

    fn act(&mut self, side: Side, action: Action) {
        let now_ns = self.now_ns;
        match action {
            Action::Dial { epoch, .. } => {
                self.host(side).dials.push(now_ns);
                self.dial(side, epoch);
            }
            Action::Install(id) => {
                let host = self.host(side);
                let address = host.sessions.get(&id).and_then(|carried| carried.address);
                host.sessions.insert(id, Carried { address, ..Carried::default() });
                host.most_sessions = host.most_sessions.max(host.sessions.len());
            }
            Action::Use(id) => {
                let host = self.host(side);
                assert!(host.sessions.contains_key(&id), "used without having been installed");
                host.used = Some(id);
            }
            Action::Forget(id) => {
                let host = self.host(side);
                assert!(host.sessions.remove(&id).is_some(), "forgotten twice");
                host.used = host.used.filter(|used| *used != id);
            }
            Action::Down => self.host(side).used = None,
            Action::Send { session, message, packet_bytes, to } => {
                let mut bytes = [0; message::LARGEST_BYTES];
                let len = message.write(&mut bytes).unwrap();
                let message = Message::read(&bytes[..len]).unwrap();
                let bytes = packet_bytes.unwrap_or(len as u16 + OVERHEAD_BYTES);
                self.send(side, session, to, bytes, Body::Message(message));
            }
            Action::Roam(id, to) => {
                if let Some(carried) = self.host(side).sessions.get_mut(&id) {
                    carried.address = Some(to);
                }
            }
            Action::PathMtu(_) | Action::Silent(_) => {}
            Action::Report(report) => self.host(side).reports.push((now_ns, report)),
        }
    }

    fn dial(&mut self, side: Side, epoch: u32) {
        let (mut there, mut back) = (self.way(side), self.way(side.other()));
        if side == Side::B {
            std::mem::swap(&mut there, &mut back);
        }
        let trip_ns = there.delay_ns + back.delay_ns;
        let now_ns = self.now_ns;
        let (instance, introduced) = (self.host(side).instance, self.introduces);
        if (there.cut || back.cut) && !introduced {
            let error = Err(unreached("timed out"));
            return self.at(now_ns + 5 * S, Event::Dialled(side, instance, error));
        }
        if !self.host(side.other()).up {
            let error = Err(unreached("connection refused"));
            return self.at(now_ns + trip_ns, Event::Dialled(side, instance, error));
        }
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let ours = SessionInfo {
            id,
            initiator: End::Us,
            epoch,
            instance: self.host(side.other()).instance,
            address: self.host(side.other()).address,
            introduced,
        };
        let mut address = self.host(side).address;
        if self.host(side).settings.largest_packet_bytes.is_some() && !introduced {
            address.set_port(HANDSHAKE_PORT);
        }
        let theirs = SessionInfo { initiator: End::Peer, instance, address, ..ours.clone() };
        let accepted_ns = now_ns + 2 * trip_ns;
        self.at(accepted_ns, Event::Accepted(side.other(), theirs));
        self.at(accepted_ns + trip_ns / 2, Event::Dialled(side, instance, Ok(ours)));
    }

    fn send(
        &mut self,
        side: Side,
        session: SessionId,
        to: Option<SocketAddr>,
        bytes: u16,
        body: Body,
    ) {
        let host = self.host(side);
        let Some(carried) = host.sessions.get_mut(&session) else { return };
        carried.counter += 1;
        carried.traffic.sent_packets += 1;
        carried.traffic.sent_bytes += u64::from(bytes);
        let (counter, Some(to)) = (carried.counter, to.or(carried.address)) else { return };
        let from = host.outside(to);
        let way = self.way(side);
        let packet = Packet { to, from, session, counter, bytes, body };
        let copies = 1 + u8::from(self.random.u8(0..100) < way.double_percent);
        for _ in 0..copies {
            let lost = self.random.u8(0..100) < way.loss_percent;
            if !(way.cut || lost || bytes > way.mtu_bytes) {
                let delay_ns = way.delay_ns + self.random.u64(0..=way.jitter_ns);
                self.at(self.now_ns + delay_ns, Event::Arrives(side.other(), packet.clone()));
            }
        }
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        let key = self.order as usize;
        self.queue.push((std::cmp::Reverse((at_ns, self.order)), key));
        self.event_of.insert(key, event);
        self.order += 1;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives(side, packet) => self.arrives(side, packet),
            Event::Accepted(side, info) => {
                let host = self.host(side);
                if host.up {
                    let ordered = host.settings.largest_packet_bytes.is_none();
                    let address = (ordered || info.introduced).then_some(info.address);
                    host.sessions.insert(info.id, Carried { address, ..Carried::default() });
                    self.give(side, PeerEvent::Accepted(info));
                }
            }
            Event::Dialled(side, instance, result) => {
                // The answer does not arrive if the network was cut, or the acceptor died.
                let result = result.and_then(|info| {
                    let cut = self.ways.iter().any(|way| way.cut) && !info.introduced;
                    let there = self.host(side.other());
                    let same = there.up && there.instance == info.instance;
                    if cut || !same { Err(unreached("connection lost")) } else { Ok(info) }
                });
                let host = self.host(side);
                if !host.up || host.instance != instance {
                    return;
                }
                if let Ok(info) = &result {
                    let address = Some(info.address);
                    host.sessions.insert(info.id, Carried { address, ..Carried::default() });
                }
                self.give(side, PeerEvent::Dialled(result));
            }
            Event::Data(side) => {
                let bytes = self.data_bytes;
                let host = self.host(side);
                if let Some(session) = host.used.filter(|_| host.up) {
                    host.data_sent += 1;
                    self.send(side, session, None, bytes, Body::Data);
                }
                if let Some(every_ns) = self.data_every_ns {
                    self.at(self.now_ns + every_ns, Event::Data(side));
                }
            }
        }
    }

    fn arrives(&mut self, side: Side, packet: Packet) {
        let now_ns = self.now_ns;
        let host = self.host(side);
        if !host.up || !host.lets_in(&packet) {
            return;
        }
        let Some(carried) = host.sessions.get_mut(&packet.session) else { return };
        let traffic = &mut carried.traffic;
        let newest = packet.counter > carried.highest;
        carried.highest = carried.highest.max(packet.counter);
        traffic.received_packets += 1;
        traffic.received_bytes += u64::from(packet.bytes);
        traffic.expected_packets = carried.highest;
        let first = traffic.received_packets == 1;
        let moved = carried.address != Some(packet.from);
        if matches!(packet.body, Body::Data) {
            host.data_received += 1;
        }
        let session = packet.session;
        if first || moved || matches!(packet.body, Body::Message(_)) {
            self.give(side, PeerEvent::Received { session, from: packet.from, newest });
        }
        if let Body::Message(message) = packet.body {
            let event = PeerEvent::Message {
                session,
                message,
                size_bytes: packet.bytes,
                received_ns: now_ns,
            };
            self.give(side, event);
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, for_ns: u64) {
        let end_ns = self.now_ns + for_ns;
        if let Some(every_ns) = self.data_every_ns
            && !self.event_of.values().any(|h| matches!(h, Event::Data(_)))
        {
            self.at(self.now_ns + every_ns, Event::Data(Side::A));
            self.at(self.now_ns + every_ns, Event::Data(Side::B));
        }
        let mut still = 0;
        loop {
            let deadline =
                |host: &SimulatedHost| if host.up { host.peer.deadline_ns() } else { u64::MAX };
            let (at_a, at_b) = (deadline(&self.a), deadline(&self.b));
            let next = self.queue.peek().map_or(u64::MAX, |(key, _)| key.0.0);
            let then_ns = next.min(at_a).min(at_b);
            if then_ns >= end_ns {
                break;
            }
            still = if then_ns > self.now_ns { 0 } else { still + 1 };
            assert!(still < 1000, "time stands still: a deadline that a tick does not move");
            self.now_ns = self.now_ns.max(then_ns);
            if next == then_ns {
                let (_, key) = self.queue.pop().unwrap();
                let event = self.event_of.remove(&key).unwrap();
                self.happen(event);
            } else {
                self.give(if at_a == then_ns { Side::A } else { Side::B }, PeerEvent::Tick);
            }
        }
        self.now_ns = end_ns;
    }

    /// Both are up, with the same session.
    pub fn agrees(&self) -> bool {
        self.a.used.is_some() && self.a.used == self.b.used
    }

    /// Runs until both agree; `None` if they do not in time.
    pub fn run_until_agreed(&mut self, limit_ns: u64) -> Option<u64> {
        let begin_ns = self.now_ns;
        while self.now_ns - begin_ns < limit_ns {
            if self.agrees() {
                return Some(self.now_ns - begin_ns);
            }
            self.run(10 * MS);
        }
        self.agrees().then_some(limit_ns)
    }
}

/// No peer has answered.
fn unreached(reason: &str) -> DialError {
    DialError { reason: reason.into(), answered: false }
}
