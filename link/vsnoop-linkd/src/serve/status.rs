//! The state of a running link, for `vsnoop link status`.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use vsnoop_divert::RuleCounters;

use crate::config::{Config, PeerConfig, PortConfig, PortKind};
use crate::control::{
    Carried, Cpu, DivertState, DivertStatus, EnteredStatus, EntryStatus, FrameCounts, Learned,
    LinkCpu, LinkPortStatus, MembershipStatus, PeerPath, PeerState, PeerStatus, Problem,
    RekeyStatus, RuleStatus, Status, TableStatus, UdpGso,
};
use crate::counters::counts::Counter;
use crate::counters::stats::{PeerStats, RuleStats};
use crate::divert::hooks::{DivertHook, DivertHooks};
use crate::divert::taps::DivertTaps;
use crate::frames::compression_policy::RuleSet;
use crate::membership::Membership;
use crate::peers::{ControlThread, PeerEntry, other_mtu};
use crate::ports::state::Ports;
use crate::threads::shared::Shared;
use crate::threads::slots::Slots;
use vsnoop_link::forwarding::{LearnedAddress, Location, Room};
use vsnoop_link::introduction::Contact;
use vsnoop_link::session::batches::BatchState;
use vsnoop_link::session::{Overdue, SessionState};
use vsnoop_link::slots::PeerSlot;

const SECOND_NS: u64 = 1_000_000_000;

/// The constant part of a link's status.
pub struct About {
    /// Seconds since the epoch.
    pub since: u64,
    pub key: String,
}

/// Sources of a status.
pub struct Sources<'a> {
    pub about: &'a About,
    pub config: &'a Config,
    pub rule_set: &'a RuleSet,
    pub shared: &'a Shared,
    pub peers: &'a Slots<PeerSlot>,
    pub control: &'a ControlThread,
    pub hooks: &'a DivertHooks,
    /// Why the revocation lists are not those of the files.
    pub lists_trouble: Option<&'a str>,
    /// `None` without `[etcd]`.
    pub membership: Option<&'a Membership>,
}

impl Sources<'_> {
    /// The status without CPU times of threads and what the log lost; with the learned addresses if
    /// they are asked for.
    pub fn status(&self, addresses: bool) -> Status {
        build_status(self, addresses)
    }
}

fn build_status(sources: &Sources<'_>, addresses: bool) -> Status {
    let Sources { about, config, rule_set, shared, peers: slots, control, hooks, .. } = *sources;
    let ports = port_statuses(config, shared, &control.ports);
    let with_gso = |configured: &PeerConfig| {
        let slot = slots.find(&configured.name)?;
        let known = control.peers.get(slot)?;
        let (udp_gso, udp_gso_again) = udp_gso(known, config.gso, shared.now_ns()).unzip();
        let status = peer_status(known, shared.peers.get(slot)?, shared);
        Some(PeerStatus { udp_gso, udp_gso_again: udp_gso_again.flatten(), ..status })
    };
    let peers: Vec<_> = config.peers.iter().filter_map(with_gso).collect();
    let now_ns = shared.now_ns();
    let callers = Counter::default();
    callers.set(control.callers_turned_away());
    Status {
        name: config.name.clone(),
        network: config.network.clone(),
        netns: find_netns(),
        pid: std::process::id(),
        since: about.since,
        config: config.file.display().to_string(),
        listen: config.listen.to_string(),
        key: about.key.clone(),
        mtu_bytes: config.mtu_bytes,
        cpu: LinkCpu::default(),
        log_lines_lost: 0,
        membership: membership_status(sources),
        dropped: drop_reasons([
            ("forwarding", &shared.stats.dropped_forwarding),
            ("loop", &shared.stats.dropped_loop),
            ("fixed", &shared.stats.dropped_fixed),
            ("unknown_datagrams", &shared.stats.unknown_datagrams),
            ("malformed_frames", &shared.stats.malformed_frames),
            ("own", &shared.stats.dropped_own),
            ("callers", &callers),
        ]),
        ports,
        peers,
        compression: rule_statuses(rule_set),
        diverts: divert_statuses(hooks),
        entry: shared
            .divert_taps
            .as_ref()
            .and_then(|divert_taps| entry_status(config, slots, divert_taps)),
        problems: list_problems(sources),
        learned: shared.table.read().entries(now_ns).count() as u64,
        table: table_status(shared.table.read().count_room()),
        addresses: addresses.then(|| {
            let table = shared.table.read();
            let all: Vec<_> = table.entries(now_ns).chain(table.group_entries(now_ns)).collect();
            // Frames do not wait for what follows.
            drop(table);
            all.iter().map(|entry| learned_status(entry, shared, control)).collect()
        }),
    }
}

fn table_status(room: Room) -> TableStatus {
    TableStatus {
        addresses: room.addresses as u64,
        proven: room.proven as u64,
        limit: room.limit as u64,
        displaced: room.displaced,
    }
}

fn learned_status(entry: &LearnedAddress, shared: &Shared, control: &ControlThread) -> Learned {
    let (port, peer) = match entry.location {
        Location::Port(slot) => (shared.find_port(slot), None),
        Location::Peer(slot) => (None, control.peers.get(slot)),
    };
    Learned {
        mac: entry.mac,
        vlan: (entry.vlan != 0).then_some(entry.vlan),
        port: port.map(|port| port.name().to_owned()),
        peer: peer.map(|peer| peer.config.name.clone()),
        age_ns: entry.age_ns,
        contested: entry.contested,
    }
}

fn membership_status(sources: &Sources<'_>) -> MembershipStatus {
    let by_file = || MembershipStatus { source: "file".into(), ..MembershipStatus::default() };
    sources.membership.map_or_else(by_file, Membership::status)
}

fn divert_statuses(hooks: &DivertHooks) -> Vec<DivertStatus> {
    let rows = |hook: &DivertHook| {
        let prefixes = hook.divert.prefixes.iter().zip(hook.read_counters());
        let row = |(prefix, counters): (&IpNet, RuleCounters)| DivertStatus {
            interface: hook.divert.interface.clone(),
            prefix: prefix.to_string(),
            peer: hook.divert.peer.clone(),
            active: hook.state == DivertState::Active,
            state: hook.state,
            reason: hook.reason(prefix),
            when_down: hook.divert.when_down,
            tap: hook.divert_tap.clone(),
            packets: counters.packets,
            bytes: counters.bytes,
            missed: counters.missed,
            forged: counters.forged,
        };
        prefixes.map(row).collect::<Vec<_>>()
    };
    hooks.hooks.iter().flat_map(rows).collect()
}

fn entry_status(
    config: &Config,
    slots: &Slots<PeerSlot>,
    divert_taps: &DivertTaps,
) -> Option<EntryStatus> {
    let divert_tap = divert_taps.entry_tap()?;
    let entered = |peer: &PeerConfig| {
        let entered = divert_taps.peers.get(slots.find(&peer.name)?)?;
        let refused = [("prefix", &entered.refused_prefix), ("form", &entered.refused_form)];
        Some(EnteredStatus {
            peer: peer.name.clone(),
            frames: entered.frames.get(),
            bytes: entered.bytes.get(),
            refused: drop_reasons(refused),
        })
    };
    Some(EntryStatus {
        tap: divert_tap.port.name().to_owned(),
        prefixes: divert_taps.local.clone(),
        peers: config.peers.iter().filter_map(entered).collect(),
        dropped: divert_tap.port.stats.dropped_out.get(),
    })
}

fn list_problems(sources: &Sources<'_>) -> Vec<Problem> {
    let Sources { config, control, hooks, lists_trouble, .. } = *sources;
    let outdated = |error: &str| Problem {
        what: format!("the revocation lists stay as they were: {error}"),
        remedy: "the files are read again every few seconds".to_owned(),
    };
    let lost = |trouble: &String| Problem {
        what: trouble.clone(),
        remedy: "until then diverted packets of peers are lost here".to_owned(),
    };
    let apart = |known: &PeerEntry| {
        let (ours, theirs) = (config.mtu_bytes, known.mtu_bytes()?);
        let remedy = "larger packets are lost at one of both; give them the same".to_owned();
        let what = || format!("peer {}: {}", known.config.name, other_mtu(ours, theirs));
        (ours != theirs).then(|| Problem { what: what(), remedy })
    };
    let mtus = control.peers.values().filter(|known| !known.is_removed).filter_map(apart);
    let outdated = lists_trouble.map(outdated);
    let layer_2 = control.layer_2.list_problems();
    hooks.trouble.iter().map(lost).chain(outdated).chain(mtus).chain(layer_2).collect()
}

fn rule_statuses(rule_set: &RuleSet) -> Vec<RuleStatus> {
    let rules = rule_set.rules.iter().cloned().map(Some).chain([None]);
    let methods =
        |stats: &RuleStats| stats.flows.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let status = |(rule, stats): (_, &std::sync::Arc<RuleStats>)| RuleStatus {
        rule,
        flows: methods(stats).values().sum(),
        methods: methods(stats),
        sent: Carried::new(
            stats.frames.get(),
            stats.bytes.get(),
            stats.after_compression(),
            stats.wire_bytes.get(),
        ),
        raw_frames: stats.raw.get(),
        compress_ns: stats.compress_ns.get(),
    };
    rules.zip(&rule_set.stats).map(status).collect()
}

fn port_statuses(config: &Config, shared: &Shared, states: &Ports) -> Vec<LinkPortStatus> {
    let status = |port: &PortConfig| {
        let (index, counted) = shared.all_ports().find(|(_, found)| found.name() == port.name)?;
        let stats = &counted.stats;
        let (kind, bridge) = match &port.kind {
            PortKind::Bridge(bridge) => ("bridge", Some(bridge.clone())),
            PortKind::Tap => ("tap", None),
            PortKind::Interface => ("interface", None),
        };
        Some(LinkPortStatus {
            name: port.name.clone(),
            kind: kind.into(),
            bridge,
            up: states.carries(index) && !counted.is_stopped(),
            reason: match states.reason(index) {
                None if counted.is_stopped() => Some("it closes a loop, and is stopped".to_owned()),
                reason => reason.map(str::to_owned),
            },
            received: frame_counts(&stats.frames_in, &stats.bytes_in),
            sent: frame_counts(&stats.frames_out, &stats.bytes_out),
            dropped: drop_reasons([
                ("full", &stats.dropped_out),
                ("forged", &stats.forged_in),
                ("flood", &stats.flood_in),
                ("addresses", &stats.too_many_in),
                ("loop", &stats.stopped),
            ]),
        })
    };
    config.ports.iter().filter_map(status).collect()
}

fn peer_status(known: &PeerEntry, stats: &PeerStats, shared: &Shared) -> PeerStatus {
    let status = known.status();
    let state = peer_state(known, status.state);
    let session = known.session();
    let transport = session.map_or(known.config.transport, |(_, transport)| transport);
    let measured = status.round_trip_now();
    let age_ns = shared.now_ns().saturating_sub(status.since_ns);
    let now = now_s();
    PeerStatus {
        name: known.config.name.clone(),
        source: known.config.source,
        state,
        path: peer_path(state),
        via: known.config.via.clone(),
        reason: status.reason,
        since: now.saturating_sub(age_ns / SECOND_NS),
        transport: Some(transport),
        encrypted: transport.is_encrypted(),
        connections: if transport.is_ordered() { known.config.connections.into() } else { 1 },
        address: status
            .address
            .map(|address| address.to_string())
            .or_else(|| known.config.called()),
        epoch: status.epoch.unwrap_or(0).into(),
        version: session.map_or(0, |(version, _)| version.into()),
        rtt_ns: measured.map(|trip| trip.smoothed_ns),
        rtt_min_ns: measured.map(|trip| trip.min_ns),
        jitter_ns: measured.map(|trip| trip.jitter_ns),
        path_mtu_bytes: status.path_mtu_bytes.map(u32::from),
        lost_out: status.delivery.lost_out_packets,
        lost_in: status.delivery.lost_in_packets,
        reconnects: status.reconnects,
        rekeys: status.rekeys,
        roams: status.roams,
        rekey: status.overdue.map(|overdue| rekey_status(overdue, now, shared.now_ns())),
        expires: known.holds_until_s(),
        ..counter_status(stats)
    }
}

/// Whether datagrams leave together, and when that is tried again; `None` of a peer without a
/// session over UDP.
fn udp_gso(known: &PeerEntry, is_wanted: bool, now_ns: u64) -> Option<(UdpGso, Option<u64>)> {
    let (_, transport) = known.session()?;
    if transport.is_ordered() {
        return None;
    }
    Some(match known.batches.state() {
        _ if !is_wanted => (UdpGso::Off, None),
        BatchState::On => (UdpGso::On, None),
        BatchState::Trial => (UdpGso::Trial, None),
        BatchState::Off { until_ns } => {
            (UdpGso::Failed, Some(now_s() + until_ns.saturating_sub(now_ns) / SECOND_NS))
        }
    })
}

/// Since the epoch.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn peer_state(known: &PeerEntry, of_session: SessionState) -> PeerState {
    let state = match of_session {
        SessionState::Up(_) => return PeerState::Up,
        SessionState::Dialling { attempt } if attempt > 1 => PeerState::Down,
        SessionState::Dialling { .. } => PeerState::Dialling,
        SessionState::Waiting => PeerState::Waiting,
        SessionState::Closed => PeerState::Down,
    };
    let by_hub = known.contact.as_ref().is_some_and(Contact::is_relayed);
    if by_hub { PeerState::Relayed } else { state }
}

fn peer_path(state: PeerState) -> Option<PeerPath> {
    match state {
        PeerState::Up => Some(PeerPath::Direct),
        PeerState::Relayed => Some(PeerPath::Relayed),
        _ => None,
    }
}

/// `now`: seconds since the epoch.
fn rekey_status(overdue: Overdue, now: u64, now_ns: u64) -> RekeyStatus {
    RekeyStatus {
        since: now.saturating_sub(now_ns.saturating_sub(overdue.since_ns) / SECOND_NS),
        reason: overdue.reason,
        ends: now + overdue.ends_ns.saturating_sub(now_ns) / SECOND_NS,
    }
}

/// The counters of a peer, without all else.
fn counter_status(stats: &PeerStats) -> PeerStatus {
    let drops = [
        ("down", &stats.dropped_down),
        ("queue_full", &stats.dropped_full),
        ("queue_late", &stats.dropped_late),
        ("send", &stats.dropped_send),
        ("flood", &stats.dropped_flood),
        ("relay", &stats.dropped_relay),
    ];
    PeerStatus {
        sent: Carried::new(
            stats.frames_out.get(),
            stats.bytes_out.get(),
            stats.after_compression(),
            stats.wire_bytes_out.get(),
        ),
        received: Carried::new(
            stats.frames_in.get(),
            stats.bytes_in.get(),
            stats.before_expansion(),
            stats.wire_bytes_in.get(),
        ),
        cpu: Cpu {
            compress_ns: stats.compress_ns.get(),
            decompress_ns: stats.decompress_ns.get(),
            seal_ns: stats.seal.get(),
            open_ns: stats.open.get(),
        },
        rejected: stats.refused_in.get(),
        queue_bytes: stats.queue_bytes.get(),
        congested: stats.congested_in.get(),
        excess: stats.excess_in.get(),
        not_accepted: stats.not_accepted_in.get(),
        dropped: drop_reasons(drops.map(|(reason, drops)| (reason, &drops.frames))),
        dropped_bytes: drop_reasons(drops.map(|(reason, drops)| (reason, &drops.bytes))),
        ..PeerStatus::default()
    }
}

fn frame_counts(frames: &Counter, bytes: &Counter) -> FrameCounts {
    FrameCounts { frames: frames.get(), bytes: bytes.get() }
}

fn drop_reasons<const N: usize>(counters: [(&str, &Counter); N]) -> BTreeMap<String, u64> {
    counters
        .into_iter()
        .filter(|(_, counter)| counter.get() > 0)
        .map(|(reason, counter)| (reason.to_owned(), counter.get()))
        .collect()
}

/// Inode of the network namespace.
fn find_netns() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}
