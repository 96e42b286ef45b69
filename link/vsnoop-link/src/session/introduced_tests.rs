//! Two peers that a hub introduces, behind NATs.

use super::simulation::*;
use super::*;

/// A direct path: it is left sooner than another, because there is a relay.
fn direct() -> PeerSettings {
    PeerSettings { probe_ns: S / 2, dead_ns: 3 * S / 2, ..settings(1500) }
}

/// Both behind NATs, which are symmetric or keep ports.
fn behind_nats(seed: u64, dials: Dials, are_symmetric: [bool; 2]) -> World {
    let mut world = World::new(seed, dials, &direct());
    world.introduces = true;
    let [a, b] = are_symmetric.map(|is_symmetric| Some(Nat { is_symmetric, ..Nat::default() }));
    (world.a.nat, world.b.nat) = (a, b);
    world
}

#[test]
fn two_behind_nats_that_keep_ports_reach_each_other() {
    for (seed, dials) in (0..50).flat_map(|seed| [(seed, Dials::A), (seed, Dials::Both)]) {
        let mut world = behind_nats(seed, dials, [false, false]);
        world.ways[0].delay_ns = world.random.u64(0..100) * MS;
        world.both_ways(|way| way.loss_percent = 20);
        world.run_until_agreed(20 * S).expect("up");
        world.both_ways(|way| way.loss_percent = 0);
        world.run(60 * S);
        assert!(world.agrees());
        assert!(world.a.downs() <= 1 && world.b.downs() <= 1, "{:?}", world.a.reports);
    }
}

#[test]
fn behind_a_symmetric_nat_no_session_is_used_and_attempts_become_rare() {
    for symmetric in [[true, false], [false, true], [true, true]] {
        let mut world = behind_nats(1, Dials::A, symmetric);
        world.run(600 * S);
        assert_eq!((world.a.ups(), world.b.ups()), (0, 0), "{symmetric:?}");
        let attempts = world.a.dials.len();
        assert!((10..=40).contains(&attempts), "{attempts} in ten minutes");
        let reason = world.a.peer.status().reason.unwrap();
        assert!(reason.contains("no datagram came back"), "{reason}");
    }
}

#[test]
fn one_that_is_behind_no_nat_is_reached_from_behind_a_symmetric_one() {
    for dials in [Dials::A, Dials::B] {
        let mut world = behind_nats(1, dials, [true, false]);
        world.b.nat = None;
        world.run_until_agreed(5 * S).expect("up");
        world.data_every_ns = Some(10 * MS);
        world.run(10 * S);
        world.data_every_ns = None;
        world.run(S);
        assert_eq!(world.a.data_sent, world.b.data_received);
        assert_eq!(world.b.data_sent, world.a.data_received);
        assert_eq!(world.b.peer.status().address.unwrap().port(), 7758, "not what the hub saw");
    }
}

#[test]
fn a_path_that_takes_datagrams_one_way_only_is_not_used() {
    for way in [0, 1] {
        let mut world = World::new(1, Dials::A, &direct());
        world.introduces = true;
        world.ways[way].cut = true;
        world.run(60 * S);
        assert_eq!((world.a.ups(), world.b.ups()), (0, 0));
        world.ways[way].cut = false;
        world.run_until_agreed(60 * S).expect("up");
    }
}

#[test]
fn a_path_that_fails_is_left_soon_and_taken_again() {
    let mut world = behind_nats(1, Dials::A, [false, false]);
    world.run_until_agreed(5 * S).expect("up");
    world.run(20 * S);
    world.both_ways(|way| way.cut = true);
    world.run(3 * S);
    assert!(world.a.used.is_none() && world.b.used.is_none());
    world.run(60 * S);
    world.both_ways(|way| way.cut = false);
    world.run_until_agreed(40 * S).expect("up again");
}

/// The hub sees another port of one end, and tells the other, which opens its own NAT for it.
#[test]
fn a_nat_that_binds_anew_is_followed_by_the_hubs_word() {
    for rebound in [Side::A, Side::B] {
        let mut world = behind_nats(1, Dials::A, [false, false]);
        world.run_until_agreed(5 * S).expect("up");
        world.run(20 * S);
        let before = world.a.used;
        world.host(rebound).rebind();
        let now = world.host(rebound).address;
        world.run(200 * MS);
        world.give(rebound.other(), PeerEvent::Found(now));
        world.run(10 * S);
        assert!(world.agrees());
        assert_eq!(world.a.used, before, "the same session");
        assert_eq!(world.a.downs() + world.b.downs(), 0, "{:?}", world.a.reports);
        assert_eq!(world.host(rebound.other()).peer.status().address, Some(now));
    }
}

/// Handshakes succeed, since the hub passes them on, and nothing comes back from where it says.
#[test]
fn a_hub_that_names_one_address_after_another_has_few_probes_sent() {
    const SECONDS: u64 = 60;
    let settings = PeerSettings { address: Some("peer".into()), ..direct() };
    let mut peer = Peer::new(settings, 1, 0);
    let (mut probes, mut next) = (0, 1);
    let mut session = |initiator, epoch, port: u64| {
        let (id, address) = (SessionId(next), ([192, 0, 2, 1], port as u16).into());
        next += 1;
        SessionInfo { id, initiator, epoch, instance: 2, address, introduced: true }
    };
    for ms in 0..SECONDS * 1000 {
        let mut events = vec![PeerEvent::Tick];
        if ms % 10 == 0 {
            events.push(PeerEvent::Found(([192, 0, 2, 1], (ms % 20) as u16).into()));
        }
        if ms % 500 == 0 {
            events.push(PeerEvent::Accepted(session(End::Peer, ms as u32, ms % 20)));
        }
        while let Some(event) = events.pop() {
            for action in peer.handle_event(event, ms * MS) {
                match action {
                    Action::Dial { epoch, .. } => {
                        let made = session(End::Us, epoch, ms % 20);
                        events.push(PeerEvent::Dialled(Ok(made)));
                    }
                    Action::Send { message: Message::Probe { .. }, .. } => probes += 1,
                    _ => {}
                }
            }
        }
    }
    assert!((1..=25 * SECONDS).contains(&probes), "{probes} in {SECONDS} s");
}
