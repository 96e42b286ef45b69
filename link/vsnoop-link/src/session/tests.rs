//! Two peers through what networks and hosts do to them.

use std::net::SocketAddr;

use super::simulation::*;
use super::*;

const ALL: [Dials; 3] = [Dials::A, Dials::B, Dials::Both];

/// A handshake takes 50 ms here, and the first packet and its answer 20 ms.
const CONNECT_NS: u64 = 80 * MS;

fn up(seed: u64, dials: Dials, settings: &PeerSettings) -> World {
    let mut world = World::new(seed, dials, settings);
    world.run_until_agreed(5 * S).expect("up");
    world.run(12 * S);
    assert!(world.agrees());
    world
}

#[test]
fn they_come_up_with_one_session_whoever_dials() {
    for seed in 0..50 {
        for dials in ALL {
            let mut world = World::new(seed, dials, &settings(1500));
            world.ways[0].delay_ns = world.random.u64(0..50) * MS;
            world.ways[1].jitter_ns = world.random.u64(0..50) * MS;
            world.run_until_agreed(5 * S).expect("up");
            world.run(60 * S);
            assert!(world.agrees());
            for host in [&world.a, &world.b] {
                assert_eq!((host.ups(), host.downs()), (1, 0), "{dials:?}: {:?}", host.reports);
                // Both may have dialled: at most one session takes the place of the other.
                assert!(host.peer.status().rekeys <= 1, "{:?}", host.reports);
            }
            assert!(world.a.dials.len() + world.b.dials.len() <= 2, "no flapping");
        }
    }
}

#[test]
fn a_rekey_loses_nothing_and_both_ends_change() {
    for dials in ALL {
        let settings = PeerSettings { rekey_ns: 20 * S, ..settings(1500) };
        let mut world = World::new(3, dials, &settings);
        world.run_until_agreed(5 * S).expect("up");
        world.run(5 * S);
        world.data_every_ns = Some(MS);
        world.run(100 * S);
        world.data_every_ns = None;
        world.run(S);
        assert!(world.agrees());
        assert_eq!(world.a.data_sent, world.b.data_received);
        assert_eq!(world.b.data_sent, world.a.data_received);
        let rekeys = world.a.peer.status().rekeys;
        assert!((4..=7).contains(&rekeys), "{rekeys} in 105 s");
        assert_eq!(world.a.downs() + world.b.downs(), 0);
        assert!(world.a.most_sessions <= 3);
    }
}

#[test]
fn many_records_or_bytes_make_new_keys_too() {
    let by_records = PeerSettings { rekey_records: 5000, ..settings(1500) };
    let by_bytes = PeerSettings { rekey_bytes: 1_000_000, ..settings(1500) };
    for settings in [by_records, by_bytes] {
        for dials in ALL {
            let mut world = up(1, dials, &settings);
            world.data_every_ns = Some(MS);
            world.run(30 * S);
            let rekeys = world.b.peer.status().rekeys;
            assert!((4..=8).contains(&rekeys), "{rekeys}");
        }
    }
}

#[test]
fn keys_that_are_due_by_amount_are_overdue_too() {
    let settings = PeerSettings { rekey_ns: 20 * S, rekey_records: 5000, ..settings(1500) };
    let mut world = World::new(1, Dials::A, &settings);
    world.run_until_agreed(5 * S).expect("up");
    let waits = PeerSettings { address: None, ..world.a.settings.clone() };
    world.give(Side::A, PeerEvent::Configured(waits));
    world.data_every_ns = Some(MS);
    // By age it would be 28 s at least.
    world.run(20 * S);
    for host in [&world.a, &world.b] {
        assert!(host.peer.status().overdue.is_some(), "{:?}", host.peer.status());
    }
}

#[test]
fn keys_end_without_new_ones_and_a_failing_rekey_is_told() {
    let settings = PeerSettings { rekey_ns: 20 * S, keys_end_ns: 40 * S, ..settings(1500) };
    let mut world = World::new(1, Dials::A, &settings);
    world.run_until_agreed(5 * S).expect("up");
    // Now neither end has an address to dial.
    let waits = PeerSettings { address: None, ..world.a.settings.clone() };
    world.give(Side::A, PeerEvent::Configured(waits));
    world.run(36 * S);
    for host in [&world.a, &world.b] {
        let status = host.peer.status();
        assert!(matches!(status.state, SessionState::Up(_)), "{status:?}");
        let overdue = status.overdue.expect("it is told");
        assert!(overdue.since_ns < overdue.ends_ns, "{overdue:?}");
    }
    world.run(8 * S);
    for host in [&world.a, &world.b] {
        let status = host.peer.status();
        assert!(!matches!(status.state, SessionState::Up(_)), "{status:?}");
        assert_eq!((status.overdue, host.downs()), (None, 1));
    }
}

#[test]
fn the_passive_end_gets_new_keys_by_asking() {
    // Only the end that cannot dial counts the session as old.
    let mut world = World::new(1, Dials::A, &settings(1500));
    let impatient = PeerSettings { rekey_ns: 30 * S, ..world.b.settings.clone() };
    world.give(Side::B, PeerEvent::Configured(impatient));
    world.run(100 * S);
    assert_eq!(world.b.dials.len(), 0);
    assert!((2..=4).contains(&world.a.peer.status().rekeys));
    assert!(world.agrees());
}

#[test]
fn a_restarted_end_that_dials_is_back_as_soon_as_it_has_shaken_hands() {
    for dials in [Dials::A, Dials::Both] {
        for seed in 0..20 {
            let mut world = up(seed, dials, &settings(1500));
            world.kill(Side::A);
            world.run(700 * MS);
            world.start(Side::A);
            let took_ns = world.run_until_agreed(10 * S).expect("up again");
            assert!(took_ns <= CONNECT_NS, "{} ms", took_ns / MS);
            world.run(60 * S);
            assert!(world.agrees());
            // The other end did not even notice a break.
            assert_eq!((world.b.downs(), world.a.dials.len()), (0, 2), "{:?}", world.b.reports);
        }
    }
}

#[test]
fn a_restarted_end_that_is_called_is_back_after_its_death_was_noticed() {
    for seed in 0..20 {
        let mut world = up(seed, Dials::A, &settings(1500));
        world.kill(Side::B);
        world.run(S);
        world.start(Side::B);
        let took_ns = world.run_until_agreed(10 * S).expect("up again");
        assert!(took_ns <= 6 * S, "{} ms", took_ns / MS);
    }
}

#[test]
fn a_dead_peer_is_called_with_longer_and_longer_pauses_and_the_reason_is_shown() {
    let mut world = up(1, Dials::A, &settings(1500));
    world.kill(Side::B);
    world.run(300 * S);
    let status = world.a.peer.status();
    assert!(matches!(status.state, SessionState::Dialling { attempt: 10.. }), "{status:?}");
    assert_eq!(status.reason.as_deref(), Some("connection refused"));
    let dials = world.a.dials.len();
    assert!((12..=25).contains(&dials), "{dials} attempts in 300 s");
    // Told once, not with each attempt.
    let told = world.a.reports.iter();
    let told = told.filter(|(_, report)| matches!(report, Report::DialFailed { .. })).count();
    assert_eq!(told, 1);
    world.start(Side::B);
    world.run_until_agreed(40 * S).expect("up again");
}

#[test]
fn after_any_faults_they_agree_again_in_bounded_time() {
    for seed in 0..300 {
        let dials = ALL[seed as usize % 3];
        let quick = PeerSettings { rekey_ns: 15 * S, ..settings(1500) };
        let mut world = World::new(seed, dials, &quick);
        world.data_every_ns = Some(50 * MS);
        for _ in 0..world.random.u32(3..20) {
            match world.random.u8(0..8) {
                0 => world.both_ways(|way| way.cut = true),
                1 => world.ways[0].cut = !world.ways[0].cut,
                2 => world.ways[1].cut = !world.ways[1].cut,
                3 => {
                    let (loss, double) = (world.random.u8(0..60), world.random.u8(0..50));
                    let jitter_ns = world.random.u64(0..200) * MS;
                    world.both_ways(|way| {
                        way.loss_percent = loss;
                        way.double_percent = double;
                        way.jitter_ns = jitter_ns;
                    });
                }
                4 => world.kill(Side::A),
                5 => world.kill(Side::B),
                6 => {
                    let port = world.random.u16(1024..);
                    let side = if world.random.bool() { Side::A } else { Side::B };
                    world.host(side).address.set_port(port);
                }
                _ => world.both_ways(|way| way.mtu_bytes = 1300),
            }
            for side in [Side::A, Side::B] {
                if !world.host(side).up && world.random.bool() {
                    world.start(side);
                }
            }
            let pause_ms = world.random.u64(0..8000);
            world.run(pause_ms * MS);
        }
        world.ways = [DirectionFaults::default(); 2];
        for side in [Side::A, Side::B] {
            if !world.host(side).up {
                world.start(side);
            }
        }
        // Death is noticed (6 s), an attempt is under way (5 s), and the longest pause passes (37.5
        // s).
        world.run(50 * S);
        assert!(world.run_until_agreed(2 * S).is_some(), "seed {seed}: {:?}", world.a.reports);
        let (downs_a, downs_b) = (world.a.downs(), world.b.downs());
        world.run(30 * S);
        assert!(world.run_until_agreed(S).is_some(), "seed {seed}");
        assert_eq!((world.a.downs(), world.b.downs()), (downs_a, downs_b), "seed {seed}");
        assert!(world.a.most_sessions <= 8 && world.b.most_sessions <= 8);
    }
}

#[test]
fn heavy_loss_is_no_death() {
    for seed in 0..20 {
        let mut world = up(seed, Dials::Both, &settings(1500));
        world.both_ways(|way| way.loss_percent = 30);
        world.run(60 * S);
        assert_eq!(world.a.downs() + world.b.downs(), 0);
    }
}

#[test]
fn a_path_that_is_open_one_way_only_is_given_up_by_both() {
    let mut world = up(1, Dials::A, &settings(1500));
    world.ways[1].cut = true;
    world.run(20 * S);
    assert_eq!((world.a.downs(), world.b.downs()), (1, 1));
    assert!(world.a.used.is_none() && world.b.used.is_none());
}

#[test]
fn a_firewall_that_eats_datagrams_is_named() {
    let mut world = World::new(1, Dials::A, &settings(1500));
    // Handshakes pass, packets do not.
    world.both_ways(|way| way.mtu_bytes = 0);
    world.run(60 * S);
    let status = world.a.peer.status();
    assert!(status.reason.is_some_and(|reason| reason.contains("UDP")));
    assert!(matches!(status.state, SessionState::Dialling { .. }));
    assert_eq!((world.a.ups(), world.b.ups()), (0, 0), "never up without a packet");
    assert!(world.a.dials.len() <= 12);
}

#[test]
fn a_peer_that_moves_keeps_its_session() {
    let mut world = up(1, Dials::A, &settings(1500));
    let session = world.a.used;
    world.data_every_ns = Some(10 * MS);
    world.a.address = "198.51.100.7:40000".parse().unwrap();
    world.run(S);
    assert_eq!((world.a.used, world.b.used), (session, session));
    let status = world.b.peer.status();
    assert_eq!((status.address, status.roams), (Some(world.a.address), 1));
    // What B sent until A answered a probe of the new path is lost, and nothing else.
    let trip_ns = world.ways[0].delay_ns + world.ways[1].delay_ns;
    let lost = world.b.data_sent - world.a.data_received;
    assert!(lost <= 5 + 2 * trip_ns / (10 * MS), "{lost} are lost");
    world.run(20 * S);
    assert_eq!(world.a.downs() + world.b.downs(), 0);
}

#[test]
fn a_peer_that_has_dialled_is_where_its_first_datagram_comes_from() {
    let mut world = up(1, Dials::A, &settings(1500));
    // A handshake came from another port, that of the first session and of the second.
    world.run(world.b.settings.rekey_ns + 10 * S);
    let status = world.b.peer.status();
    assert!(status.rekeys >= 1);
    assert_eq!((status.address, status.roams), (Some(world.a.address), 0));
    let told = |report: &Report| match report {
        Report::Up { address } => *address != world.a.address,
        Report::Roamed { .. } => true,
        _ => false,
    };
    assert!(!world.b.reports.iter().any(|(_, report)| told(report)), "{:?}", world.b.reports);
}

#[test]
fn packets_that_were_overtaken_or_come_again_move_nothing() {
    let mut world = up(1, Dials::A, &settings(1500));
    let (session, from) = (world.b.used.unwrap(), "203.0.113.9:1".parse().unwrap());
    world.give(Side::B, PeerEvent::Received { session, from, newest: false });
    assert_eq!(world.b.peer.status().address, Some(world.a.address));
    let unknown = SessionId(u64::MAX);
    world.give(Side::B, PeerEvent::Received { session: unknown, from, newest: true });
    assert_eq!(world.b.peer.status().roams, 0);
}

/// RFC 9000, section 9.3.1: an attacker sends copies on with another source, faster than the path.
#[test]
fn a_forged_source_gets_a_few_probes_a_second_and_nothing_else() {
    let mut world = up(1, Dials::A, &settings(1500));
    let session = world.b.used.unwrap();
    let before = world.b.sent_packets();
    for i in 0..10_000_u64 {
        let from = SocketAddr::from(([203, 0, 113, (i % 200) as u8], 7));
        world.give(Side::B, PeerEvent::Received { session, from, newest: true });
        world.now_ns += MS / 10;
    }
    let status = world.b.peer.status();
    assert_eq!((status.address, status.roams), (Some(world.a.address), 0));
    let probes = world.b.sent_packets() - before;
    assert!((4..=10).contains(&probes), "{probes} in a second");
}

#[test]
fn a_peer_that_moves_is_followed_although_sources_are_forged() {
    let mut world = up(1, Dials::A, &settings(1500));
    let session = world.b.used.unwrap();
    world.data_every_ns = Some(10 * MS);
    world.a.address = "198.51.100.7:40000".parse().unwrap();
    for i in 0..20_u8 {
        let from = SocketAddr::from(([203, 0, 113, i], 7));
        world.give(Side::B, PeerEvent::Received { session, from, newest: true });
        world.run(500 * MS);
    }
    let status = world.b.peer.status();
    assert_eq!((status.address, status.roams), (Some(world.a.address), 1));
    assert_eq!(world.a.downs() + world.b.downs(), 0);
}

#[test]
fn the_same_address_written_as_ipv6_is_no_move() {
    let mut world = up(1, Dials::A, &settings(1500));
    let session = world.b.used.unwrap();
    let from = "[::ffff:192.0.2.1]:7757".parse().unwrap();
    world.give(Side::B, PeerEvent::Received { session, from, newest: true });
    assert_eq!(world.b.peer.status().roams, 0);
}

#[test]
fn the_path_mtu_is_found_and_found_again_behind_a_black_hole() {
    for (interface, path) in [(1500, 1500), (1500, 1420), (9000, 1500), (9000, 8951), (1500, 1280)]
    {
        for loss_percent in [0, 1] {
            let mut world = World::new(7, Dials::A, &settings(interface));
            world.both_ways(|way| {
                way.mtu_bytes = path;
                way.loss_percent = loss_percent;
            });
            world.run(15 * S);
            for host in [&world.a, &world.b] {
                assert_eq!(host.peer.status().path_mtu_bytes, Some(path));
            }
            world.both_ways(|way| way.mtu_bytes = 1300.min(path));
            world.run(15 * S);
            for host in [&world.a, &world.b] {
                assert_eq!(host.peer.status().path_mtu_bytes, Some(1300.min(path)));
                assert_eq!(host.downs(), 0);
            }
            world.both_ways(|way| way.mtu_bytes = path);
            world.run(620 * S);
            assert_eq!(world.a.peer.status().path_mtu_bytes, Some(path));
        }
    }
}

#[test]
fn a_cut_line_does_not_shrink_the_path_mtu() {
    let patient = PeerSettings { dead_ns: 60 * S, ..settings(1500) };
    let mut world = up(1, Dials::A, &patient);
    world.both_ways(|way| way.cut = true);
    world.run(30 * S);
    world.both_ways(|way| way.cut = false);
    world.run(100 * MS);
    assert_eq!(world.a.peer.status().path_mtu_bytes, Some(1500));
}

#[test]
fn round_trip_loss_and_delivery_are_those_of_the_path() {
    let mut world = up(1, Dials::A, &settings(1500));
    world.both_ways(|way| way.jitter_ns = 2 * MS);
    world.ways[0].loss_percent = 5;
    world.data_every_ns = Some(MS);
    world.data_bytes = 1000;
    world.run(100 * S);
    let (a, b) = (world.a.peer.status(), world.b.peer.status());
    let trip = a.round_trip;
    assert!((21..=23).contains(&(trip.avg_ns() / MS)), "{trip:?}");
    assert!(trip.min_ns >= 20 * MS && trip.max_ns <= 24 * MS && trip.jitter_ns < 2 * MS);
    let lost = a.delivery.lost_out_packets as f64 / world.a.data_sent as f64;
    assert!((0.045..0.055).contains(&lost), "{lost}");
    assert!(a.delivery.lost_in_packets < 20);
    assert!(b.delivery.lost_in_packets.abs_diff(a.delivery.lost_out_packets) < 100);
    // 1000 bytes each millisecond, of which a twentieth is lost; and probes.
    let rate = a.delivery.path_bytes_per_s.expect("losses are congestion");
    assert!((940_000..1_000_000).contains(&rate), "{rate}");
    assert_eq!(b.delivery.path_bytes_per_s, None);
}

#[test]
fn going_down_is_told_and_the_peer_calls_again() {
    let mut world = up(1, Dials::B, &settings(1500));
    world.give(Side::A, PeerEvent::Close);
    world.kill(Side::A);
    world.run(100 * MS);
    let status = world.b.peer.status();
    assert!(matches!(status.state, SessionState::Dialling { .. }), "{status:?}");
    assert!(status.round_trip.count > 0 && status.round_trip_now().is_none(), "{status:?}");
    let down = Report::Down { reason: "the peer has taken the link down".into() };
    assert!(world.b.reports.iter().any(|(_, report)| *report == down));
    world.run(800 * MS);
    world.start(Side::A);
    let took_ns = world.run_until_agreed(5 * S).expect("up again");
    assert!(took_ns < 2 * S, "{}", took_ns / MS);
    world.run(S);
    assert!(world.b.peer.status().round_trip_now().is_some());
}

#[test]
fn that_a_peer_was_taken_down_is_said_until_somebody_answers_there() {
    let mut world = up(1, Dials::B, &settings(1500));
    world.give(Side::A, PeerEvent::Close);
    world.kill(Side::A);
    let closed = "the peer has taken the link down";
    // One end hears it, and calls in vain many times.
    for _ in 0..10 {
        world.run(5 * S);
        let reason = world.b.peer.status().reason.unwrap();
        assert_eq!(reason, format!("{closed}; since then: connection refused"));
    }
    let error = DialError { reason: "it refuses us".into(), answered: true };
    world.give(Side::B, PeerEvent::Dialled(Err(error)));
    assert_eq!(world.b.peer.status().reason.as_deref(), Some("it refuses us"));
    world.run(60 * S);
    assert_eq!(world.b.peer.status().reason.as_deref(), Some("connection refused"));
    // A peer that comes back and is killed has sent no close message.
    world.start(Side::A);
    world.run_until_agreed(40 * S).expect("up again");
    world.run(12 * S);
    world.kill(Side::A);
    world.run(30 * S);
    assert_eq!(world.b.peer.status().reason.as_deref(), Some("connection refused"));
}

#[test]
fn a_peer_that_comes_back_and_calls_is_not_said_to_be_down_though_our_calls_are_refused() {
    let mut world = up(1, Dials::B, &settings(1500));
    world.give(Side::A, PeerEvent::Close);
    world.kill(Side::A);
    world.run(5 * S);
    let reason = |world: &World| world.b.peer.status().reason.unwrap();
    assert!(reason(&world).starts_with("the peer has taken the link down"), "{}", reason(&world));
    // It calls: the handshake passes, datagrams do not. Our own calls go on in vain.
    world.both_ways(|way| way.mtu_bytes = 0);
    let info = SessionInfo {
        id: SessionId(1_000_000),
        initiator: End::Peer,
        epoch: 1,
        instance: 7,
        address: world.a.address,
        introduced: false,
    };
    world.give(Side::B, PeerEvent::Accepted(info));
    // From the handshake on, before it is known what comes of it.
    let error = DialError { reason: "connection refused".into(), answered: false };
    world.give(Side::B, PeerEvent::Dialled(Err(error)));
    assert_eq!(reason(&world), "connection refused");
    for _ in 0..9 {
        world.run(10 * S);
        let reason = reason(&world);
        assert!(!reason.contains("taken the link down"), "{reason}");
    }
    let reason = reason(&world);
    assert!(reason.contains("no datagram came through"), "{reason}");
    assert!(reason.ends_with("; since then: connection refused"), "{reason}");
    // When a call of ours reaches it, that is the news.
    let error = DialError { reason: "it refuses us".into(), answered: true };
    world.give(Side::B, PeerEvent::Dialled(Err(error)));
    assert_eq!(world.b.peer.status().reason.as_deref(), Some("it refuses us"));
}

#[test]
fn a_connection_that_breaks_is_made_again_at_once() {
    let ordered = PeerSettings::default();
    let mut world = up(1, Dials::A, &ordered);
    let session = world.a.used.unwrap();
    for side in [Side::A, Side::B] {
        world.give(side, PeerEvent::Failed { session, reason: "connection reset".into() });
    }
    assert!(world.a.used.is_none());
    let took_ns = world.run_until_agreed(S).expect("up again");
    assert!(took_ns <= CONNECT_NS, "{}", took_ns / MS);
    assert_eq!(world.a.peer.status().path_mtu_bytes, None);
}

#[test]
fn being_suspended_is_no_death() {
    // Also when the answer to a probe is still on the way then: some probe is, at one of these
    // times.
    for ms in (0..1100).step_by(9) {
        let mut world = up(1, Dials::A, &settings(1500));
        world.run(ms * MS);
        // No tick comes for a minute, as when the host was suspended; then both go on.
        world.now_ns += 60 * S;
        world.give(Side::A, PeerEvent::Tick);
        world.give(Side::B, PeerEvent::Tick);
        world.run(10 * S);
        assert_eq!(world.a.downs() + world.b.downs(), 0, "after {ms} ms");
        assert!(world.agrees());
    }
}

#[test]
fn another_address_in_the_configuration_is_called_without_a_break() {
    let mut world = up(1, Dials::A, &settings(1500));
    let elsewhere = PeerSettings { address: Some("other".into()), ..world.a.settings.clone() };
    world.give(Side::A, PeerEvent::Configured(elsewhere));
    world.run(S);
    assert!(world.agrees());
    assert_eq!((world.a.dials.len(), world.a.downs(), world.b.downs()), (2, 0, 0));
}

#[test]
fn a_peer_that_dials_without_end_gets_a_bounded_number_of_sessions() {
    let mut world = up(1, Dials::A, &settings(1500));
    let mut installed = 1_i64;
    for i in 0..10_000 {
        let info = SessionInfo {
            id: SessionId(1_000_000 + i),
            initiator: End::Peer,
            epoch: (i % 7) as u32,
            instance: i / 100,
            address: world.a.address,
            introduced: false,
        };
        for action in world.b.peer.handle_event(PeerEvent::Accepted(info), world.now_ns + i) {
            match action {
                Action::Install(_) => installed += 1,
                Action::Forget(_) => installed -= 1,
                _ => {}
            }
            assert!((1..=8).contains(&installed));
        }
    }
    assert!(matches!(world.b.peer.status().state, SessionState::Up(_)), "the one in use stays");
}

mod any {
    use proptest::prelude::*;

    use super::*;

    fn events() -> impl Strategy<Value = PeerEvent> {
        let id = || (0..4_u64).prop_map(SessionId);
        let address = || (0..4_u8).prop_map(|n| SocketAddr::from(([192, 0, 2, n], 1)));
        let info = (id(), any::<bool>(), any::<u32>(), (0..3_u64, any::<bool>()), address())
            .prop_map(|(id, us, epoch, (instance, introduced), address)| SessionInfo {
                id,
                initiator: if us { End::Us } else { End::Peer },
                epoch,
                instance,
                address,
                introduced,
            });
        let message = proptest::collection::vec(any::<u8>(), 64).prop_map(|mut bytes| {
            (bytes[0], bytes[1]) = (1 + bytes[0] % 3, 64);
            Message::read(&bytes).unwrap()
        });
        let traffic = any::<[u64; 5]>().prop_map(|n| SessionTraffic {
            received_packets: n[0],
            received_bytes: n[1],
            expected_packets: n[2],
            sent_packets: n[3],
            sent_bytes: n[4],
        });
        prop_oneof![
            info.clone().prop_map(|info| PeerEvent::Dialled(Ok(info))),
            info.prop_map(PeerEvent::Accepted),
            address().prop_map(PeerEvent::Found),
            any::<bool>().prop_map(|answered| {
                PeerEvent::Dialled(Err(DialError { reason: "no".into(), answered }))
            }),
            (id(), traffic).prop_map(|(id, traffic)| PeerEvent::Traffic(id, traffic)),
            (id(), address(), any::<bool>())
                .prop_map(|(session, from, newest)| PeerEvent::Received { session, from, newest }),
            (id(), message, any::<(u16, u64)>()).prop_map(
                |(session, message, (size_bytes, received_ns))| PeerEvent::Message {
                    session,
                    message,
                    size_bytes,
                    received_ns
                }
            ),
            any::<u16>().prop_map(|size_bytes| PeerEvent::TooBig { size_bytes }),
            any::<u16>().prop_map(PeerEvent::Largest),
            id().prop_map(|session| PeerEvent::Failed { session, reason: "cut".repeat(1000) }),
            Just(PeerEvent::Tick),
        ]
    }

    proptest! {
        /// In any order, at any times, also such as a broken daemon would tell.
        #[test]
        fn events_leave_at_most_one_session_in_use_and_each_forgotten_once(
            events in proptest::collection::vec((events(), any::<u32>()), 0..200),
            seed in any::<u64>(),
        ) {
            let with_address = PeerSettings { address: Some("b".into()), ..settings(1500) };
            let mut peer = Peer::new(with_address, seed, 0);
            let (mut now_ns, mut used) = (0_u64, None);
            let mut installed = std::collections::BTreeSet::new();
            for (event, step_ns) in events {
                now_ns += u64::from(step_ns);
                for action in peer.handle_event(event, now_ns) {
                    match action {
                        Action::Install(id) => prop_assert!(installed.insert(id)),
                        Action::Use(id) => {
                            prop_assert!(installed.contains(&id));
                            used = Some(id);
                        }
                        Action::Forget(id) => {
                            prop_assert!(installed.remove(&id));
                            used = used.filter(|used| *used != id);
                        }
                        Action::Down => used = None,
                        Action::Send { session, .. } => prop_assert!(
                            installed.contains(&session), "sent under a session that is not there"
                        ),
                        Action::Dial { .. } | Action::Roam(..) | Action::PathMtu(_)
                        | Action::Report(_) | Action::Silent(_) => {}
                    }
                }
                let status = peer.status();
                match status.state {
                    SessionState::Up(id) => prop_assert_eq!(Some(id), used),
                    _ => prop_assert_eq!(None, used),
                }
                prop_assert!(status.reason.is_none_or(|reason| reason.len() <= 400));
            }
        }
    }
}
