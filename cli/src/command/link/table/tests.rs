use vsnoop_linkd::config::{Compress, Transport, WhenDown};
use vsnoop_linkd::control::{
    Carried, Cpu, DivertState, DivertStatus, EnteredStatus, EntryStatus, FrameCounts, Learned,
    LinkCpu, LinkPortStatus, PeerState, PeerStatus, Problem, RuleStatus, UdpGso,
};

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
    render_link(status, 1000, false)
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
    assert!(text.lines().any(|line| line.contains("vsl-office") && line.ends_with('7')), "{text}");
    assert!(text.lines().last().unwrap().starts_with("other traffic"), "{text}");
}

#[test]
fn losses_cpu_time_and_what_the_link_dropped_are_told_apart() {
    let mut status = status();
    let peer = &mut status.peers[0];
    (peer.lost_out, peer.lost_in) = (31, 7);
    peer.cpu = Cpu { compress_ns: 11_000, decompress_ns: 12_000, seal_ns: 13_000, open_ns: 14_000 };
    peer.received = Carried::new(10, 3000, 1000, 1100);
    status.cpu = LinkCpu { cores: 1.256, egress_ns: 21_000, ..LinkCpu::default() };
    status.dropped = [("forwarding".to_owned(), 3), ("malformed_frames".to_owned(), 2)].into();
    let (brief, full) = (render_link(&status, 1000, false), render_link(&status, 1000, true));
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
    rule.selector.prefixes = vec!["fedc:fedc:fedc:fedc:fedc:fedc:fedc:fedc/128".parse().unwrap()];
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
    let text = render_status(&document, true);
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
    assert_eq!(problems::divert_problem(&divert), None);
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
