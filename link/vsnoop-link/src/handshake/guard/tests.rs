use super::*;
use std::net::Ipv4Addr;

const SECOND_NS: u64 = 1_000_000_000;

fn unknown(n: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + n).into()
}

fn peer() -> IpAddr {
    "192.0.2.1".parse().unwrap()
}

fn named(n: u32) -> PeerId {
    PeerId::new(&format!("peer{n}"))
}

/// Limits that allow any number of unknown sources in all.
fn without_total() -> GuardLimits {
    let rate = RateLimit::per_second(1000, u64::from(u32::MAX));
    GuardLimits { unknown: rate, ..GuardLimits::default() }
}

fn permit(guard: &Guard, from: IpAddr, now_ns: u64) -> Permit {
    guard.admit_caller(from, now_ns).unwrap().permit
}

#[test]
fn unknown_sources_cannot_take_the_slots_of_peers() {
    let guard = Guard::new(without_total());
    guard.set_peer(PeerSlot(0), [peer()]);
    let taken: Vec<_> = (0..48).map(|n| guard.admit_caller(unknown(n), 0).unwrap()).collect();
    assert!(taken.iter().all(|admitted| admitted.displaced.is_none()));
    let peers: Vec<_> = (0..16).map(|_| guard.admit_caller(peer(), 0).unwrap()).collect();
    assert!(peers.iter().all(|admitted| admitted.displaced.is_none()));
    assert_eq!(guard.admit_caller(peer(), 0).unwrap_err(), CallRefused::SourceSlots);
    drop(taken);
    assert_eq!(guard.under_way(), 16);
    assert!(guard.admit_caller(unknown(2000), 0).is_ok());
}

#[test]
fn a_peer_displaces_an_unknown_source_and_never_the_reverse() {
    let guard = Guard::new(GuardLimits { slots: 4, reserved: 1, ..without_total() });
    guard.set_peer(PeerSlot(0), [peer()]);
    let callers: Vec<_> = (0..3).map(|n| permit(&guard, unknown(n), 0)).collect();
    let peers: Vec<_> = (0..4).map(|_| guard.admit_caller(peer(), 0).unwrap()).collect();
    // In any order: two of the sources may be counted together (their hashes are of a random key).
    let mut displaced: Vec<_> = peers.iter().filter_map(|admitted| admitted.displaced).collect();
    displaced.sort_unstable();
    assert_eq!(displaced, callers.iter().map(Permit::id).collect::<Vec<_>>());
    assert_eq!(guard.admit_caller(peer(), 0).unwrap_err(), CallRefused::Full);
    assert_eq!(guard.admit_caller(unknown(9), 0).unwrap_err(), CallRefused::Full);
    drop(callers);
    assert_eq!(guard.under_way(), 4, "what was displaced is not counted again");
}

#[test]
fn the_source_with_the_most_calls_loses_its_oldest() {
    let guard = Guard::new(without_total());
    // Six sources, as many calls as they get: one with a single call is not displaced.
    let modest = permit(&guard, unknown(1000), 0);
    let mut held = Vec::new();
    for n in 0..96 {
        let Ok(admitted) = guard.admit_caller(unknown(n % 6), 0) else { continue };
        assert_ne!(admitted.displaced, Some(modest.id()));
        held.push(admitted.permit);
    }
    let another = guard.admit_caller(unknown(2000), 0).unwrap();
    let greedy: Vec<_> = held.iter().map(Permit::id).collect();
    assert!(greedy.contains(&another.displaced.unwrap()));
    for _ in 0..100 {
        let admitted = guard.admit_caller(unknown(3), 0);
        let displaced = admitted.ok().and_then(|admitted| admitted.displaced);
        assert!(displaced.is_none_or(|id| id != modest.id() && id != another.permit.id()));
    }
    assert!(guard.under_way() <= 48);
}

#[test]
fn beyond_the_rate_of_unknown_sources_they_are_challenged_and_then_refused() {
    let limits = GuardLimits::default();
    let guard = Guard::new(limits);
    guard.set_peer(PeerSlot(0), [peer()]);
    let (mut open, mut challenged, mut refused) = (0, 0, 0_u64);
    // 20,000 calls within 2 s, each from another source. No account is evicted.
    for n in 0..20_000u32 {
        match guard.admit_caller(unknown(n), u64::from(n) * SECOND_NS / 10_000) {
            Ok(admitted) if admitted.permit.is_challenged() => challenged += 1,
            Ok(_) => open += 1,
            Err(CallRefused::TotalRate) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    let most = |rate: RateLimit| rate.burst + 2 * SECOND_NS / rate.each_ns;
    assert!(open <= most(limits.unknown) && open + 2 > limits.unknown.burst, "{open}");
    assert!(challenged <= most(limits.challenges), "{challenged}");
    assert!(refused > 18_000, "{refused}");
    let known = permit(&guard, peer(), 2 * SECOND_NS);
    assert!(!known.is_challenged());
}

#[test]
fn those_that_answer_have_a_rate_which_a_peer_gives_back() {
    let rate = RateLimit::per_second(1, 1);
    let limits = GuardLimits { unknown: rate, ..GuardLimits::default() };
    let guard = Guard::new(limits);
    let _first = permit(&guard, unknown(0), 0);
    for n in 0..500 {
        let peer = permit(&guard, unknown(1000 + n), 0);
        assert!(peer.is_challenged() && peer.note_answered(0).is_ok());
        peer.note_authenticated(&named(n), 0);
    }
    let answered =
        (0..500).filter(|n| permit(&guard, unknown(9000 + n), 0).note_answered(0).is_ok());
    assert_eq!(answered.count(), limits.answered.burst as usize);
}

#[test]
fn no_account_is_forgotten_because_others_call() {
    let guard = Guard::new(without_total());
    while guard.admit_caller(unknown(1), 0).is_ok() {}
    for n in 0..100_000 {
        let _ = guard.admit_caller(unknown(1000 + n), 0);
    }
    assert_eq!(guard.admit_caller(unknown(1), 0).unwrap_err(), CallRefused::SourceRate);
}

#[test]
fn a_peer_whose_name_stands_for_other_addresses_now_is_known_by_those_and_not_by_a_thousand() {
    let guard = Guard::new(GuardLimits { slots: 1, reserved: 1, ..GuardLimits::default() });
    let is_known = |address| guard.admit_caller(address, 0).is_ok();
    guard.set_peer(PeerSlot(0), [unknown(1), unknown(2)]);
    guard.set_peer(PeerSlot(1), [peer()]);
    assert!(is_known(unknown(1)) && is_known(unknown(2)) && is_known(peer()));
    guard.set_peer(PeerSlot(0), (3..1003).map(unknown));
    assert!(!is_known(unknown(1)) && is_known(unknown(3)) && is_known(peer()));
    assert_eq!((3..1003).filter(|n| is_known(unknown(*n))).count(), PEER_ADDRESSES);
}

#[test]
fn a_caller_is_in_a_hurry_only_when_it_is_unknown_and_slots_are_scarce() {
    let guard = Guard::new(GuardLimits::default());
    guard.set_peer(PeerSlot(0), [peer()]);
    let taken: Vec<_> = (0..40).map(|n| permit(&guard, unknown(n), 0)).collect();
    assert_eq!(taken[0].allowance(), DEADLINE);
    assert_eq!(taken[39].allowance(), GuardLimits::default().hurried);
    assert_eq!(permit(&guard, peer(), 0).allowance(), DEADLINE);
}

#[test]
fn one_source_is_held_to_its_rate_and_its_share() {
    let limits = without_total();
    let guard = Guard::new(limits);
    let held: Vec<_> = (0..100).map_while(|_| guard.admit_caller(unknown(1), 0).ok()).collect();
    assert_eq!(held.len(), limits.source_slots);
    assert_eq!(guard.admit_caller(unknown(1), 0).unwrap_err(), CallRefused::SourceSlots);
    drop(held);
    let in_ten_seconds = (0..10_000)
        .filter(|ms| guard.admit_caller(unknown(1), ms * SECOND_NS / 1000).is_ok())
        .count();
    let most = (limits.source.burst + 10 * SECOND_NS / limits.source.each_ns) as usize;
    assert!(in_ten_seconds + limits.source_slots <= most, "{in_ten_seconds}");
    assert!(in_ten_seconds + limits.source_slots + 2 > most, "{in_ten_seconds}");
    assert!(guard.admit_caller(unknown(2), 0).is_ok());
}

#[test]
fn a_host_cannot_evade_its_rate_by_other_addresses_of_its_ipv6_prefix() {
    let guard = Guard::new(without_total());
    let admitted = |prefix: u128| {
        (0..500u128)
            .filter(|n| {
                let address = Ipv6Addr::from((0x2001_0db8 << 96) | (prefix << 64) | *n);
                guard.admit_caller(address.into(), 0).is_ok()
            })
            .count()
    };
    assert_eq!(admitted(1), 32);
    assert_eq!(admitted(2), 32);
}

#[test]
fn an_ipv4_address_is_the_same_one_on_an_ipv6_listener() {
    let guard = Guard::new(GuardLimits { slots: 1, reserved: 1, ..GuardLimits::default() });
    guard.set_peer(PeerSlot(0), [peer()]);
    let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
    assert!(guard.admit_caller(mapped, 0).is_ok());
    assert!(guard.admit_caller(unknown(1), 0).is_err());
}

#[test]
fn a_peer_that_has_proved_itself_is_known_and_not_charged() {
    let guard = Guard::new(without_total());
    for n in 0..1000 {
        permit(&guard, unknown(1), 0).note_authenticated(&named(n), 0);
    }
    let _others: Vec<_> =
        (100..1100).filter_map(|n| guard.admit_caller(unknown(n), 0).ok()).collect();
    assert!(guard.admit_caller(unknown(1), 0).is_ok());
    assert_eq!(guard.counts().authenticated, 1000);
}

#[test]
fn what_is_remembered_is_bounded() {
    let limits = GuardLimits::default();
    let guard = Guard::new(limits);
    let held: Vec<_> = (0..40).map(|n| permit(&guard, unknown(n), 0)).collect();
    for n in 0..100_000 {
        let now_ns = u64::from(n) * SECOND_NS / 100;
        permit(&guard, unknown(1000 + n), now_ns).note_authenticated(&named(n), now_ns);
    }
    let book = guard.lock_book();
    assert_eq!(book.unknown.len(), limits.accounts);
    assert!(book.known.len() <= 2 * limits.proved + 1);
    assert_eq!(book.proved.len(), limits.proved);
    assert!(book.by_peer.len() <= limits.accounts);
    drop(book);
    drop(held);
    assert_eq!(guard.under_way(), 0);
}

#[test]
fn a_clock_that_goes_back_gives_no_credit() {
    let guard = Guard::new(GuardLimits::default());
    let admitted =
        (0..1000).filter(|n| guard.admit_caller(unknown(1), SECOND_NS * (n % 2)).is_ok()).count();
    assert!(admitted <= 40, "{admitted}");
}

/// Handshakes of a caller in ten seconds, which prove peers.
fn proved_in_ten_seconds(guard: &Guard, from: IpAddr, peer: impl Fn(u64) -> PeerId) -> u64 {
    let all = (0..10_000).filter(|ms| {
        let now_ns = ms * SECOND_NS / 1000;
        let Ok(admitted) = guard.admit_caller(from, now_ns) else { return false };
        admitted.permit.note_authenticated(&peer(*ms), now_ns);
        true
    });
    all.count() as u64
}

#[test]
fn a_peer_that_proves_itself_again_and_again_is_held_to_a_rate_of_its_own() {
    let limits = GuardLimits::default();
    let guard = Guard::new(limits);
    guard.set_peer(PeerSlot(0), [peer()]);
    guard.set_peer(PeerSlot(1), [unknown(1)]);
    let most = |limit: RateLimit| limit.burst + 10 * SECOND_NS / limit.each_ns;
    let count = proved_in_ten_seconds(&guard, peer(), |_| named(0));
    assert!((most(limits.peer)..=most(limits.peer) + most(limits.source)).contains(&count));
    // Another peer is not, nor the same one after a while.
    let now_ns = 10 * SECOND_NS;
    for _ in 0..limits.peer.burst {
        permit(&guard, unknown(1), now_ns).note_authenticated(&named(1), now_ns);
    }
    let later_ns = 60 * SECOND_NS;
    for _ in 0..limits.peer.burst {
        permit(&guard, peer(), later_ns).note_authenticated(&named(0), later_ns);
    }
}

/// A hub was started again: each peer makes a session over TLS with all its connections. Their
/// addresses are known, or they are behind one NAT.
#[test]
fn a_fleet_of_a_thousand_peers_gets_in_at_once() {
    for is_behind_nat in [false, true] {
        let guard = Guard::new(GuardLimits::default());
        for n in 0..1000 {
            guard.set_peer(PeerSlot(n as u16), [unknown(n)]);
        }
        for n in 0..1000 {
            let from = if is_behind_nat { peer() } else { unknown(n) };
            for _ in 0..33 {
                permit(&guard, from, 0).note_authenticated(&named(n), 0);
            }
        }
        assert_eq!(guard.counts().authenticated, 33_000);
        assert_eq!(guard.counts().turned_away(), 0);
    }
}

#[test]
fn all_peers_together_have_a_rate() {
    let limits = GuardLimits { peers: RateLimit::per_second(20, 40), ..GuardLimits::default() };
    let guard = Guard::new(limits);
    guard.set_peer(PeerSlot(0), [peer()]);
    let count = proved_in_ten_seconds(&guard, peer(), |ms| named(ms as u32));
    assert!((limits.peers.burst + 190..=limits.peers.burst + 200).contains(&count), "{count}");
    assert_eq!(guard.admit_caller(peer(), 0).unwrap_err(), CallRefused::PeersRate);
    // Unknown callers have their own.
    assert!((1..=30).all(|n| guard.admit_caller(unknown(n), 10 * SECOND_NS).is_ok()));
}
