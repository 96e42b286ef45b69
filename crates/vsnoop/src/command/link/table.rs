//! `vsnoop link status` as text: a paragraph and tables for each link, then problems and remedies.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use vsnoop_host::units;
use vsnoop_linkd::config::{Compress, Transport, WhenDown};
use vsnoop_linkd::control::{
    Carried, DivertState, DivertStatus, EnteredStatus, EntryStatus, Learned, LinkCpu,
    LinkPortStatus, MembershipStatus, PeerState, PeerStatus, RefusedEntry, RuleStatus, Status,
    UdpGso,
};

use super::document::LinkStatusDocument;
use crate::log;
use crate::output::fold::fold;
use crate::output::table;

/// Shown if there is none.
const NOTHING: &str = "no link is up; `vsnoop link up FILE` starts one";
/// Most addresses of one link in the text; JSON has all.
const ADDRESSES: usize = 1000;

pub fn text(document: &LinkStatusDocument, details: bool) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut parts: Vec<_> =
        document.links.iter().map(|status| link(status, now, details)).collect();
    parts.extend(document.silent.iter().map(|silent| silent.problem.clone()));
    if parts.is_empty() { NOTHING.into() } else { fold(&parts.join("\n\n")) }
}

fn link(status: &Status, now: u64, details: bool) -> String {
    let mut parts = vec![format!(
        "link {}, network {}: up for {}, process {}, listens at {}, MTU {}, {} learned, {:.2} CPUs busy",
        status.name,
        status.network,
        since(now, status.since),
        status.pid,
        status.listen,
        status.mtu_bytes,
        addresses(status.learned),
        status.cpu.cores,
    )];
    parts.extend(membership(&status.membership, now));
    parts.extend(ports(status));
    parts.extend(peers(status));
    if details {
        parts.extend(peers_details(status));
    }
    parts.extend(compression(status));
    parts.extend(diverts(status));
    parts.extend(entry(status));
    parts.extend(learned(status));
    if details {
        parts.push(cpu(&status.cpu));
    }
    parts.extend(dropped(&status.dropped));
    parts.extend(log::loss_text("the link", status.log_lines_lost));
    parts.extend(status.peers.iter().filter_map(unencrypted));
    let ports = !status.ports.is_empty();
    parts.extend(status.peers.iter().filter_map(|peer| trouble(peer, ports, now)));
    parts.extend(status.peers.iter().filter_map(|peer| one_by_one(peer, now)));
    parts.extend(members_trouble(&status.membership));
    parts.extend(status.ports.iter().filter_map(port_trouble));
    parts.extend(status.diverts.iter().filter_map(divert_trouble));
    parts.extend(
        status.problems.iter().map(|problem| format!("{}: {}", problem.what, problem.remedy)),
    );
    parts.join("\n")
}

/// "etcd: connected to http://192.0.2.10:2379 for 3 min, 19 hosts besides a, revision 42"
fn membership(membership: &MembershipStatus, now: u64) -> Option<String> {
    let name = membership.name.as_deref()?;
    let endpoint = membership.endpoint.as_deref().unwrap_or("any node");
    let period = since(now, membership.since);
    let state = match (membership.connected, &membership.reason) {
        (true, _) => format!("connected to {endpoint} for {period}"),
        (false, Some(reason)) => format!("AWAY for {period} ({reason}); what is known goes on"),
        (false, None) => "being connected".into(),
    };
    let hosts = units::count(membership.hosts);
    Some(format!("etcd: {state}; {hosts} hosts besides {name}, revision {}", membership.revision))
}

fn members_trouble(membership: &MembershipStatus) -> Vec<String> {
    let MembershipStatus { not_announced, leaving, refused, more, .. } = membership;
    let mut all: Vec<_> =
        not_announced.iter().map(|why| format!("this host is not announced: {why}")).collect();
    all.extend(leaving.iter().map(|name| {
        format!("host {name} is gone from etcd; it stays a peer while its session is up")
    }));
    let entry = |entry: &RefusedEntry| {
        format!("the entry {} in etcd is not taken: {}", entry.name, entry.reason)
    };
    all.extend(refused.iter().map(entry));
    all.extend(more.then(|| "etcd has more entries than a link takes".to_owned()));
    all
}

/// A table as text; none without rows.
fn section(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Option<String> {
    let mut table = table::new(headings);
    let mut is_empty = true;
    for row in rows {
        table.add_row(row);
        is_empty = false;
    }
    (!is_empty).then(|| table::text(&table))
}

fn ports(status: &Status) -> Option<String> {
    let headings = [
        "port",
        "where",
        "state",
        ">frames in",
        ">bytes in",
        ">frames out",
        ">bytes out",
        ">dropped",
    ];
    section(&headings, status.ports.iter().map(port))
}

fn peers(status: &Status) -> Option<String> {
    let headings = [
        "peer",
        "state",
        "transport",
        "address",
        ">rtt",
        ">sent",
        ">received",
        ">ratio",
        ">lost out",
        ">lost in",
    ];
    section(&headings, status.peers.iter().map(peer))
}

fn peers_details(status: &Status) -> Option<String> {
    let headings = [
        "peer",
        ">path MTU",
        ">jitter",
        ">wire out",
        ">wire in",
        ">ratio in",
        ">queue",
        ">dropped",
        ">rejected",
        ">reconnects",
        ">rekeys",
        ">roams",
        ">compress",
        ">expand",
        ">seal",
        ">open",
    ];
    section(&headings, status.peers.iter().map(peer_details))
}

fn compression(status: &Status) -> Option<String> {
    // The last entry is for traffic without a rule; alone it means that nothing is compressed.
    if !status.compression.iter().any(|status| status.rule.is_some()) {
        return None;
    }
    let headings =
        ["compression of", "method", ">flows", ">before", ">after", ">ratio", ">as it is", ">CPU"];
    section(&headings, status.compression.iter().map(rule_row))
}

fn diverts(status: &Status) -> Option<String> {
    let headings =
        ["diverted from", "to", "peer", "state", ">packets", ">bytes", ">missed", ">forged"];
    section(&headings, status.diverts.iter().map(diverted))
}

fn entry(status: &Status) -> Option<String> {
    let entry = status.entry.as_ref()?;
    let headings = ["diverted by", "comes in at", ">packets", ">bytes", ">refused"];
    section(&headings, entry.peers.iter().map(|peer| entered(entry, peer)))
}

/// The learned addresses, and below them how many more there are.
fn learned(status: &Status) -> Vec<String> {
    let Some(learned) = &status.addresses else { return Vec::new() };
    let headings = ["address", "VLAN", "at", ">heard of"];
    let rows = learned.iter().take(ADDRESSES).map(address);
    let more = learned.len().saturating_sub(ADDRESSES) as u64;
    let note = (more > 0).then(|| format!("and {} more (--json lists them)", addresses(more)));
    section(&headings, rows).into_iter().chain(note).collect()
}

fn port(port: &LinkPortStatus) -> Vec<String> {
    vec![
        port.name.clone(),
        match &port.bridge {
            Some(bridge) => format!("in {bridge}"),
            None => port.kind.clone(),
        },
        match (port.up, &port.reason) {
            (true, None) => "up",
            // It carries frames, but not as configured.
            (true, Some(_)) => "up, see below",
            (false, _) => "down",
        }
        .into(),
        units::count(port.received.frames),
        units::bytes(port.received.bytes),
        units::count(port.sent.frames),
        units::bytes(port.sent.bytes),
        units::count(sum(&port.dropped)),
    ]
}

fn peer(peer: &PeerStatus) -> Vec<String> {
    vec![
        peer.name.clone(),
        state(peer).into(),
        transport(peer),
        peer.address.clone().unwrap_or_else(|| "-".into()),
        time(peer.rtt_ns),
        units::bytes(peer.sent.bytes),
        units::bytes(peer.received.bytes),
        ratio(&peer.sent),
        units::count(peer.lost_out),
        units::count(peer.lost_in),
    ]
}

fn peer_details(peer: &PeerStatus) -> Vec<String> {
    vec![
        peer.name.clone(),
        peer.path_mtu_bytes.map_or("-".into(), |bytes| bytes.to_string()),
        time(peer.jitter_ns),
        units::bytes(peer.sent.wire_bytes),
        units::bytes(peer.received.wire_bytes),
        ratio(&peer.received),
        units::bytes(peer.queue_bytes),
        units::count(sum(&peer.dropped)),
        units::count(peer.rejected),
        units::count(peer.reconnects),
        units::count(peer.rekeys),
        units::count(peer.roams),
        units::duration(peer.cpu.compress_ns),
        units::duration(peer.cpu.decompress_ns),
        units::duration(peer.cpu.seal_ns),
        units::duration(peer.cpu.open_ns),
    ]
}

fn rule_row(status: &RuleStatus) -> Vec<String> {
    let (name, method) = match &status.rule {
        Some(rule) => (rule.selector.to_string(), method(rule, &status.methods)),
        None => ("other traffic".into(), "off".into()),
    };
    vec![
        name,
        method,
        units::count(status.flows),
        units::bytes(status.sent.bytes),
        units::bytes(status.sent.compressed_bytes),
        ratio(&status.sent),
        units::count(status.raw_frames),
        units::duration(status.compress_ns),
    ]
}

fn diverted(divert: &DivertStatus) -> Vec<String> {
    vec![
        divert.interface.clone(),
        divert.prefix.clone(),
        divert.peer.clone(),
        divert.state.to_string(),
        units::count(divert.packets),
        units::bytes(divert.bytes),
        units::count(divert.missed),
        units::count(divert.forged),
    ]
}

fn entered(entry: &EntryStatus, peer: &EnteredStatus) -> Vec<String> {
    vec![
        peer.peer.clone(),
        entry.tap.clone(),
        units::count(peer.frames),
        units::bytes(peer.bytes),
        units::count(sum(&peer.refused)),
    ]
}

/// "auto: 3 lz4, 1 raw does not pay", "zstd, dictionary 128 MiB"
fn method(rule: &Compress, now: &BTreeMap<String, u64>) -> String {
    let mut text = rule.method.to_string();
    if !now.is_empty() {
        let methods: Vec<_> = now
            .iter()
            .map(|(method, flows)| format!("{flows} {}", method.replace('_', " ")))
            .collect();
        text = format!("{text}: {}", methods.join(", "));
    }
    if let Some(bytes) = rule.dictionary_bytes {
        text = format!("{text}, dictionary {}", units::bytes(bytes.into()));
    }
    text
}

fn address(learned: &Learned) -> Vec<String> {
    vec![
        learned.mac.to_string(),
        learned.vlan.map_or("-".into(), |vlan| vlan.to_string()),
        match (&learned.port, &learned.peer) {
            (Some(port), _) => format!("port {port}"),
            (None, Some(peer)) => format!("peer {peer}"),
            (None, None) => "-".into(),
        },
        format!(
            "{} ago{}",
            units::duration(learned.age_ns),
            if learned.contested { ", used elsewhere too" } else { "" }
        ),
    ]
}

fn cpu(cpu: &LinkCpu) -> String {
    format!(
        "CPU time: {} for what goes to peers, {} for what comes from them, {} in all",
        units::duration(cpu.egress_ns),
        units::duration(cpu.ingress_ns),
        units::duration(cpu.process_ns)
    )
}

/// "dropped by the link: 3 (forwarding), 2 (malformed frames)"
fn dropped(reasons: &BTreeMap<String, u64>) -> Option<String> {
    let reason = |(reason, count): (&String, &u64)| {
        format!("{} ({})", units::count(*count), reason.replace('_', " "))
    };
    let all: Vec<_> = reasons.iter().map(reason).collect();
    (!all.is_empty()).then(|| format!("dropped by the link: {}", all.join(", ")))
}

fn unencrypted(peer: &PeerStatus) -> Option<String> {
    let name = &peer.name;
    (!peer.encrypted).then(|| format!("peer {name}: NOT ENCRYPTED, as its transport was chosen"))
}

/// Datagrams to a peer leave one by one, which costs CPU time, and not by the configuration.
fn one_by_one(peer: &PeerStatus, now: u64) -> Option<String> {
    let name = &peer.name;
    match peer.udp_gso? {
        UdpGso::On | UdpGso::Off => None,
        UdpGso::Trial => Some(format!(
            "peer {name}: the path loses many datagrams: for a trial they leave one by one, without \
             UDP GSO"
        )),
        UdpGso::Failed => {
            let left = peer.udp_gso_again.map_or("some time".into(), |again| since(again, now));
            Some(format!(
                "peer {name}: datagrams that leave together (UDP GSO) fail on the way, single ones do \
                 not: they leave one by one for {left} more; gso = false is for good"
            ))
        }
    }
}

/// Why a peer is not up. Diverted traffic has a line of its own.
fn trouble(peer: &PeerStatus, ports: bool, now: u64) -> Option<String> {
    let (name, period) = (&peer.name, since(now, peer.since));
    let address = peer.address.as_deref().unwrap_or("its address");
    let reason = peer.reason.as_deref();
    match peer.state {
        PeerState::Up => peer.rekey.as_ref().map(|rekey| {
            let (period, left) = (since(now, rekey.since), since(rekey.ends, now));
            format!(
                "peer {name} gets no new keys since {period} ({}); its session ends in {left}",
                rekey.reason
            )
        }),
        PeerState::Waiting => Some(format!(
            "peer {name} has not called for {period}{}: is its link up, and does it have this host's address?",
            reason.map_or(String::new(), |reason| format!(" ({reason})"))
        )),
        PeerState::Relayed => reason.map(|reason| {
            let hub = peer.via.as_deref().unwrap_or("its hub");
            format!("peer {name} is relayed by {hub} since {period}: {reason}")
        }),
        // The first call is under way.
        PeerState::Dialling if reason.is_none() => None,
        PeerState::Dialling | PeerState::Down => Some(format!(
            "peer {name} is not reached since {period} ({}){}; {address} is called again and again",
            reason.unwrap_or("no answer"),
            if ports { ", and frames for it are dropped" } else { "" }
        )),
    }
}

fn port_trouble(port: &LinkPortStatus) -> Option<String> {
    let name = &port.name;
    let down = format!("it is down: `ip link set {name} up`");
    match (port.up, &port.reason) {
        (true, None) => None,
        (true, Some(reason)) => Some(format!("port {name}: {reason}")),
        (false, reason) => {
            Some(format!("port {name} carries no frames: {}", reason.as_ref().unwrap_or(&down)))
        }
    }
}

fn divert_trouble(divert: &DivertStatus) -> Option<String> {
    let DivertStatus { interface, prefix, peer, .. } = divert;
    let reason = divert.reason.as_deref().unwrap_or("no reason given");
    let why = match divert.state {
        DivertState::Active => return None,
        DivertState::PeerDown => match &divert.reason {
            Some(reason) => format!("there is no peer {peer} now ({reason})"),
            // The peer's own line says why.
            None => format!("peer {peer} is not reached"),
        },
        DivertState::NotTaken => format!("peer {peer} refuses it ({reason})"),
        // Then there is no traffic.
        DivertState::NoInterface => {
            return Some(format!("interface {interface} does not exist, and is waited for"));
        }
        DivertState::Failed => {
            return Some(format!(
                "traffic from {interface} to {prefix} goes its ordinary way: {reason}"
            ));
        }
    };
    let what = match divert.when_down {
        WhenDown::Pass => "goes its ordinary way",
        WhenDown::Drop => "is dropped",
    };
    Some(format!("traffic from {interface} to {prefix} {what}: {why}"))
}

fn state(peer: &PeerStatus) -> &'static str {
    match peer.state {
        // By its own path, not by the hub's relay.
        PeerState::Up if peer.via.is_some() => "direct",
        PeerState::Up => "up",
        PeerState::Relayed => "relayed",
        PeerState::Dialling => "dialling",
        PeerState::Waiting => "waiting",
        PeerState::Down => "down",
    }
}

fn transport(peer: &PeerStatus) -> String {
    let name = peer.transport.map_or("-", Transport::name);
    if peer.connections > 1 { format!("{name} x{}", peer.connections) } else { name.into() }
}

fn ratio(carried: &Carried) -> String {
    carried.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
}

fn time(ns: Option<u64>) -> String {
    ns.map_or("-".into(), units::duration)
}

fn addresses(count: u64) -> String {
    if count == 1 { "1 address".into() } else { format!("{} addresses", units::count(count)) }
}

fn sum(dropped: &BTreeMap<String, u64>) -> u64 {
    dropped.values().fold(0, |sum, count| sum.saturating_add(*count))
}

/// Whole seconds, minutes or hours.
fn since(now: u64, then: u64) -> String {
    match now.saturating_sub(then) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => units::duration(seconds.saturating_mul(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_linkd::control::{Cpu, FrameCounts, Problem};

    use super::*;
    use crate::longest;

    fn status() -> Status {
        let rule = Compress {
            selector: Default::default(),
            method: "auto".parse().unwrap(),
            owner: None,
            dictionary_bytes: Some(128 << 20),
        };
        Status {
            name: "office".into(),
            network: "both".into(),
            ports: vec![LinkPortStatus {
                name: "vsl-office".into(),
                kind: "bridge".into(),
                bridge: Some("br0".into()),
                up: true,
                dropped: [("no_peer".to_owned(), 3), ("too_long".to_owned(), 4)].into(),
                ..LinkPortStatus::default()
            }],
            peers: vec![PeerStatus {
                name: "b".into(),
                state: PeerState::Up,
                encrypted: true,
                transport: Some(Transport::Tls),
                connections: 4,
                rtt_ns: Some(20_100_000),
                sent: Carried::new(10, 4000, 1000, 1100),
                ..PeerStatus::default()
            }],
            compression: vec![
                RuleStatus {
                    rule: Some(rule),
                    methods: [("lz4".to_owned(), 2), ("raw_rate_unknown".to_owned(), 1)].into(),
                    ..RuleStatus::default()
                },
                RuleStatus::default(),
            ],
            ..Status::default()
        }
    }

    fn shown(status: &Status) -> String {
        link(status, 1000, false)
    }

    #[test]
    fn frames_are_said_to_be_dropped_only_where_there_are_any() {
        let mut status = status();
        status.peers[0].state = PeerState::Down;
        let frames = "frames for it are dropped";
        let text = shown(&status);
        assert!(text.contains("is not reached") && text.contains(frames), "{text}");
        // A link for diverted traffic only.
        status.ports.clear();
        let text = shown(&status);
        assert!(text.contains("is not reached") && !text.contains(frames), "{text}");
    }

    #[test]
    fn what_is_well_has_its_numbers_and_no_complaint() {
        let text = shown(&status());
        for word in
            ["tls x4", "20.1 ms", "4.00", "auto: 2 lz4, 1 raw rate unknown,", "dictionary 128 MiB"]
        {
            assert!(text.contains(word), "{word} is not in:\n{text}");
        }
        assert!(
            text.lines().any(|line| line.contains("vsl-office") && line.ends_with('7')),
            "{text}"
        );
        assert!(text.lines().last().unwrap().starts_with("other traffic"), "{text}");
    }

    #[test]
    fn losses_cpu_time_and_what_the_link_dropped_are_told_apart() {
        let mut status = status();
        let peer = &mut status.peers[0];
        (peer.lost_out, peer.lost_in) = (31, 7);
        peer.cpu =
            Cpu { compress_ns: 11_000, decompress_ns: 12_000, seal_ns: 13_000, open_ns: 14_000 };
        peer.received = Carried::new(10, 3000, 1000, 1100);
        status.cpu = LinkCpu { cores: 1.256, egress_ns: 21_000, ..LinkCpu::default() };
        status.dropped = [("forwarding".to_owned(), 3), ("malformed_frames".to_owned(), 2)].into();
        let (brief, full) = (link(&status, 1000, false), link(&status, 1000, true));
        let row = |text: &str, nth| {
            let mut rows = text.lines().filter(|line| line.starts_with("b "));
            rows.nth(nth)
                .expect("a row of the peer")
                .split_whitespace()
                .rev()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert!(row(&brief, 0).starts_with("7 31 4.00"), "{brief}");
        assert!(row(&full, 2).starts_with("us 14.0 us 13.0 us 12.0 us 11.0"), "{full}");
        assert!(row(&full, 1).contains(" 3.00 "), "{full}");
        assert!(brief.contains("1.26 CPUs busy"), "{brief}");
        assert!(brief.contains("by the link: 3 (forwarding), 2 (malformed frames)"), "{brief}");
        assert!(full.contains("21.0 us for what goes to peers"), "{full}");
    }

    #[test]
    fn what_only_the_log_would_say_is_shown() {
        let mut status = status();
        let is_said = |status: &Status, words| shown(status).contains(words);
        let (one_by_one, lost) = ("one by one", "of the log of the link were lost");
        assert!(!is_said(&status, one_by_one) && !is_said(&status, lost));
        status.log_lines_lost = 3;
        assert!(is_said(&status, "3 lines of the log of the link were lost"), "{}", shown(&status));
        let peer = &mut status.peers[0];
        (peer.udp_gso, peer.udp_gso_again) = (Some(UdpGso::Failed), Some(1000 + 540));
        assert!(is_said(&status, "one by one for 9 min more"), "{}", shown(&status));
        status.peers[0].udp_gso = Some(UdpGso::Trial);
        assert!(is_said(&status, "for a trial they leave one by one"), "{}", shown(&status));
        for quiet in [None, Some(UdpGso::On), Some(UdpGso::Off)] {
            status.peers[0].udp_gso = quiet;
            assert!(!is_said(&status, one_by_one), "{quiet:?}: {}", shown(&status));
        }
    }

    #[test]
    fn a_link_is_shown_in_narrow_tables() {
        let name = || longest::NAME.to_owned();
        let frames = FrameCounts { frames: u64::MAX, bytes: u64::MAX };
        let mut status = status();
        status.name = name();
        status.network = name();
        status.listen = longest::address().to_string();
        (status.pid, status.mtu_bytes, status.learned) = (u32::MAX, u16::MAX, u64::MAX);
        status.log_lines_lost = u64::MAX;
        let port = &mut status.ports[0];
        (port.name, port.bridge) = (longest::INTERFACE.into(), Some(longest::INTERFACE.into()));
        (port.received, port.sent) = (frames, frames);
        let peer = &mut status.peers[0];
        (peer.name, peer.address) = (name(), Some(longest::address().to_string()));
        (peer.transport, peer.state) = (Some(Transport::UdpPlain), PeerState::Dialling);
        (peer.lost_out, peer.lost_in, peer.rejected) = (u64::MAX, u64::MAX, u64::MAX);
        (peer.udp_gso, peer.udp_gso_again) = (Some(UdpGso::Failed), Some(u64::MAX));
        peer.sent = Carried::new(u64::MAX, u64::MAX, 1, u64::MAX);
        (peer.received, peer.reason) = (peer.sent, Some("connection refused".into()));
        peer.cpu = Cpu { compress_ns: u64::MAX, decompress_ns: 1, seal_ns: 1, open_ns: 1 };
        let rule = status.compression[0].rule.as_mut().expect("a rule");
        (rule.selector.peer, rule.selector.port) = (Some(name()), Some(longest::INTERFACE.into()));
        rule.selector.prefixes =
            vec!["fedc:fedc:fedc:fedc:fedc:fedc:fedc:fedc/128".parse().unwrap()];
        status.diverts = vec![DivertStatus {
            interface: longest::INTERFACE.into(),
            prefix: "fedc:fedc:fedc:fedc:fedc:fedc:fedc:fedc/128".into(),
            peer: name(),
            packets: u64::MAX,
            bytes: u64::MAX,
            missed: u64::MAX,
            forged: u64::MAX,
            ..DivertStatus::default()
        }];
        let entered = EnteredStatus { peer: name(), frames: u64::MAX, ..EnteredStatus::default() };
        let entry = EntryStatus { tap: longest::INTERFACE.into(), ..EntryStatus::default() };
        status.entry = Some(EntryStatus { peers: vec![entered], ..entry });
        let learned = Learned { peer: Some(name()), contested: true, ..Learned::default() };
        status.addresses = Some(vec![learned]);
        status.dropped = [("malformed_frames".to_owned(), u64::MAX)].into();
        let document = LinkStatusDocument { links: vec![status], silent: Vec::new() };
        let text = text(&document, true);
        longest::assert_narrow(&text);
        assert!(text.contains(&longest::address().to_string()), "{text}");
    }

    #[test]
    fn traffic_that_is_not_diverted_is_said_to_go_another_way_or_none() {
        let mut divert = DivertStatus {
            interface: "tap7".into(),
            prefix: "10.2.0.0/16".into(),
            peer: "b".into(),
            active: true,
            state: DivertState::Active,
            ..DivertStatus::default()
        };
        assert_eq!(divert_trouble(&divert), None);
        for (state, when_down, words) in [
            (DivertState::PeerDown, WhenDown::Pass, ["tap7 to 10.2.0.0/16", "ordinary way"]),
            (DivertState::PeerDown, WhenDown::Drop, ["tap7 to 10.2.0.0/16", "is dropped"]),
            (DivertState::PeerDown, WhenDown::Drop, ["there is no peer b", "is dropped"]),
            (DivertState::NotTaken, WhenDown::Pass, ["not in its link.local", "ordinary way"]),
            (DivertState::NoInterface, WhenDown::Drop, ["tap7", "does not exist"]),
        ] {
            (divert.state, divert.when_down) = (state, when_down);
            divert.reason = Some("it is not in its link.local".into());
            let text = shown(&Status { diverts: vec![divert.clone()], ..status() });
            let last = text.lines().last().unwrap();
            assert!(words.iter().all(|word| last.contains(word)), "{state}: {last}");
        }
    }

    #[test]
    fn what_is_not_well_is_said_last_with_what_to_do() {
        let mut status = status();
        let peer = &mut status.peers[0];
        (peer.state, peer.since) = (PeerState::Down, 988);
        (peer.reason, peer.address) = (Some("connection refused".into()), Some("h:1".into()));
        status.ports[0].up = false;
        status.problems =
            vec![Problem { what: "the host does not forward".into(), remedy: "sysctl".into() }];
        let text = shown(&status);
        let last: Vec<_> = text.lines().rev().take(3).collect();
        assert_eq!(last[0], "the host does not forward: sysctl");
        assert!(last[1].contains("ip link set vsl-office up"), "{text}");
        let mut status = status.clone();
        status.ports[0].reason = Some("the link's tap was deleted".into());
        let text = shown(&status);
        assert!(text.contains("vsl-office carries no frames: the link's tap was"), "{text}");
        status.ports[0].up = true;
        status.ports[0].reason = Some("it is in another bridge".into());
        let text = shown(&status);
        assert!(text.contains("port vsl-office: it is in another bridge"), "{text}");
        assert!(text.contains("up, see below") && !text.contains("carries no frames"), "{text}");
        for word in ["peer b", "12 s", "connection refused", "h:1"] {
            assert!(last[2].contains(word), "{word} is not in {:?}", last[2]);
        }
    }
}
