use super::Whereabouts::{Anywhere, At, Either};
use super::decision::{ASSURED_AFTER_NS, COPIES_BURST, FLOOD_BYTES};
use super::*;
use crate::forwarding::frame_addresses::FrameAddresses;
use crate::forwarding::location::ForwardingDecision;
use crate::forwarding::membership::{Family, MembershipMessage};
use crate::slots::PortSlot;
use proptest::prelude::*;

const PORT: Location = Location::Port(PortSlot(1));
const OTHER: Location = Location::Port(PortSlot(2));
const PEER: Location = Location::Peer(PeerSlot(1));

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

fn table() -> Table {
    Table::new(TableSettings::default())
}

fn addresses(destination: Mac) -> FrameAddresses {
    FrameAddresses { destination, source: mac(99), vlan: 0, is_stacked: false, bytes: 64 }
}

#[test]
fn vlans_learn_for_themselves() {
    let mut table = table();
    assert_eq!(table.learn_address(1, mac(1), PORT, 0), Ok(SourceState::Settled));
    assert_eq!(table.learn_address(2, mac(1), PEER, 0), Ok(SourceState::Settled));
    assert_eq!(table.look_up_address(1, mac(1), 0), Some(At(PORT)));
    assert_eq!(table.look_up_address(2, mac(1), 0), Some(At(PEER)));
    assert_eq!(table.look_up_address(0, mac(1), 0), None);
}

#[test]
fn an_address_is_forgotten_when_it_is_silent() {
    let mut table = table();
    let ageing = TableSettings::default().ageing_ns;
    assert_eq!(table.learn_address(0, mac(1), PORT, 0), Ok(SourceState::Settled));
    note(&mut table, 1, PORT, ageing);
    assert_eq!(table.look_up_address(0, mac(1), 2 * ageing), Some(At(PORT)));
    assert_eq!(table.look_up_address(0, mac(1), 2 * ageing + 1), None);
    assert_eq!(table.confirm_address(0, mac(1), PORT, 2 * ageing + 1), None);
}

#[test]
fn nothing_goes_back_or_from_peer_to_peer() {
    let mut table = table();
    assert_eq!(table.learn_address(0, mac(1), PORT, 0), Ok(SourceState::Settled));
    assert_eq!(table.learn_address(0, mac(2), PEER, 0), Ok(SourceState::Settled));
    let decide = |to: u32, from| table.decide(&addresses(mac(to)), from, SourceState::Settled, 0);
    assert_eq!(decide(1, PEER), ForwardingDecision::To(PORT));
    assert_eq!(decide(1, OTHER), ForwardingDecision::To(PORT));
    assert_eq!(decide(2, PORT), ForwardingDecision::To(PEER));
    assert_eq!(decide(1, PORT), ForwardingDecision::Drop(DropReason::SameLocation));
    assert_eq!(
        decide(2, Location::Peer(PeerSlot(2))),
        ForwardingDecision::Drop(DropReason::SplitHorizon)
    );
    assert_eq!(decide(3, PORT), ForwardingDecision::Flood(Scope::All));
    assert!(!PEER.reaches(Location::Peer(PeerSlot(2))) && !PORT.reaches(PORT));
    assert!(PEER.reaches(PORT) && PORT.reaches(PEER) && PORT.reaches(OTHER));
}

#[test]
fn relayed_peers_reach_each_other_and_no_others() {
    let [a, b, aside] = [1, 2, 3].map(|peer| Location::Peer(PeerSlot(peer)));
    let mut table = table();
    table.set_relayed([PeerSlot(1), PeerSlot(2)]);
    for (number, at) in [(1, PORT), (2, a), (3, b), (4, aside)] {
        assert_eq!(table.learn_address(0, mac(number), at, 0), Ok(SourceState::Settled));
    }
    let decide = |to: u32, from| table.decide(&addresses(mac(to)), from, SourceState::Settled, 0);
    assert_eq!(decide(3, a), ForwardingDecision::To(b));
    assert_eq!(decide(1, a), ForwardingDecision::To(PORT));
    assert_eq!(decide(2, a), ForwardingDecision::Drop(DropReason::SameLocation));
    for (to, from) in [(4, a), (2, aside)] {
        assert_eq!(decide(to, from), ForwardingDecision::Drop(DropReason::SplitHorizon));
    }
    assert_eq!(table.find_relays(a, &Scope::All), [PeerSlot(2)]);
    assert!(table.find_relays(a, &Scope::Ports).is_empty());
    assert!(table.find_relays(a, &Scope::Members(vec![a, PORT, aside])).is_empty());
    assert_eq!(table.find_relays(a, &Scope::MembersAndPeers(vec![PORT])), [PeerSlot(2)]);
    assert!(table.find_relays(aside, &Scope::All).is_empty());
    assert!(table.find_relays(PORT, &Scope::All).is_empty(), "a port's frames need no relay");
}

/// Otherwise a frame that comes by the hub without a label would make the peer's address doubtful,
/// and what is sent to it would be sent twice.
#[test]
fn what_a_hub_relays_is_no_other_use_of_an_address_behind_it() {
    let [hub, peer, other] = [1, 2, 3].map(|peer| Location::Peer(PeerSlot(peer)));
    let mut table = table();
    table.set_hubs([(PeerSlot(2), PeerSlot(1))]);
    assert_eq!(table.learn_address(0, mac(1), peer, 0), Ok(SourceState::Settled));
    assert_eq!(table.confirm_address(0, mac(1), hub, 1), None);
    assert_eq!(table.learn_address(0, mac(1), hub, 1), Ok(SourceState::Settled));
    assert_eq!(table.look_up_address(0, mac(1), 1), Some(Whereabouts::At(peer)));
    // Neither the hub nor the peer takes the address of another without doubt.
    assert_eq!(table.learn_address(0, mac(1), other, 1), Ok(SourceState::Doubtful));
    assert_eq!(table.look_up_address(0, mac(1), 1), Some(Whereabouts::Either(peer, other)));
    assert_eq!(table.learn_address(0, mac(2), hub, 1), Ok(SourceState::Settled));
    assert_eq!(table.learn_address(0, mac(2), peer, 1), Ok(SourceState::Doubtful));
    assert_eq!(table.look_up_address(0, mac(2), 1), Some(Whereabouts::Either(hub, peer)));
    // A VM that has moved from the peer to the hub.
    assert_eq!(table.learn_address(0, mac(3), peer, 1), Ok(SourceState::Settled));
    let later = 3_000_000_000;
    assert_eq!(table.learn_address(0, mac(3), hub, later), Ok(SourceState::Settled));
    assert_eq!(table.look_up_address(0, mac(3), later), Some(Whereabouts::At(hub)));
    // What comes without a label is the hub's own once the hub labels; not those of others, and not
    // after it has gone.
    assert_eq!(table.learn_address(0, mac(4), peer, 0), Ok(SourceState::Settled));
    table.set_labelled(other, true);
    assert_eq!(table.learn_address(0, mac(4), hub, 1), Ok(SourceState::Settled));
    table.set_labelled(peer, true);
    table.forget_location(hub);
    assert_eq!(table.learn_address(0, mac(4), hub, 1), Ok(SourceState::Settled));
    table.set_labelled(peer, true);
    table.set_hubs([(PeerSlot(2), PeerSlot(1))]);
    assert_eq!(table.learn_address(0, mac(4), hub, 1), Ok(SourceState::Doubtful));
    assert_eq!(table.look_up_address(0, mac(4), 1), Some(Whereabouts::Either(peer, hub)));
}

#[test]
fn what_is_relayed_is_bounded_as_the_floods_of_a_port_are() {
    let mut table = table();
    table.set_settings(TableSettings { floods_per_second: 10, ..TableSettings::default() }, 0);
    assert_eq!(table.learn_address(0, mac(99), PEER, 0), Ok(SourceState::Settled));
    let flood = |table: &Table| {
        let decision = |_| table.decide(&addresses(Mac([0xff; 6])), PEER, SourceState::Settled, 0);
        let all = (0..100).map(decision);
        all.filter(|decision| *decision == ForwardingDecision::Flood(Scope::All)).count()
    };
    assert_eq!(flood(&table), 100, "to ports only");
    table.set_relayed([PeerSlot(1), PeerSlot(2)]);
    assert_eq!(flood(&table), 10);
}

#[test]
fn groups_are_flooded_and_control_is_not() {
    let table = table();
    assert_eq!(
        table.decide(&addresses(Mac([0xff; 6])), PORT, SourceState::Settled, 0),
        ForwardingDecision::Flood(Scope::All)
    );
    assert_eq!(
        table.decide(&addresses(Mac([0x33, 0x33, 0, 0, 0, 1])), PEER, SourceState::Settled, 0),
        ForwardingDecision::Flood(Scope::All)
    );
    let stp = Mac([1, 0x80, 0xc2, 0, 0, 0]);
    assert_eq!(
        table.decide(&addresses(stp), PORT, SourceState::Settled, 0),
        ForwardingDecision::Drop(DropReason::Control)
    );
}

#[test]
fn a_group_address_is_never_learned() {
    let mut table = table();
    for source in [Mac([0xff; 6]), Mac([1, 2, 3, 4, 5, 6]), Mac([0; 6])] {
        assert_eq!(table.learn_address(0, source, PORT, 0), Err(DropReason::BadSource));
    }
    assert!(table.known.is_empty());
}

/// Frames of `source` at `from` that go to all, of `count` at one moment.
fn flooded(table: &mut Table, source: Mac, from: Location, count: usize, now: u64) -> usize {
    let broadcast = FrameAddresses { source, ..addresses(Mac([0xff; 6])) };
    let known = table.learn_address(0, source, from, now).expect("an address");
    let decisions = (0..count).map(|_| table.decide(&broadcast, from, known, now));
    decisions.filter(|decision| *decision == ForwardingDecision::Flood(Scope::All)).count()
}

#[test]
fn what_a_vm_floods_is_bounded_and_no_other_vm_notices() {
    let settings = TableSettings { floods_per_second: 100, ..TableSettings::default() };
    let mut table = Table::new(settings);
    assert_eq!(flooded(&mut table, mac(1), PORT, 1000, 0), 100);
    assert_eq!(flooded(&mut table, mac(2), PORT, 10, 0), 10, "another VM");
    assert_eq!(flooded(&mut table, mac(1), PORT, 1000, SECOND_NS / 2), 50);
    assert_eq!(flooded(&mut table, mac(3), PEER, 1000, 0), 1000, "copies to ports only");
    // Invented addresses have what a port has.
    let invented = (100..200).map(|n| flooded(&mut table, mac(n), OTHER, 50, 0)).sum::<usize>();
    assert_eq!(invented, 400);
    // A super-packet counts as its segments.
    let long = FrameAddresses { bytes: 20 * FLOOD_BYTES, ..addresses(Mac([0xff; 6])) };
    let long = FrameAddresses { source: mac(2), ..long };
    let decide = |_| table.decide(&long, PORT, SourceState::Settled, SECOND_NS);
    let all = (0..50).map(decide).filter(|to| *to == ForwardingDecision::Flood(Scope::All));
    assert_eq!(all.count(), 5);
}

#[test]
fn invented_addresses_do_not_use_up_what_a_known_one_needs() {
    let settings = TableSettings { floods_per_second: 100, ..TableSettings::default() };
    let mut table = Table::new(settings);
    let flood = |table: &mut Table, now| {
        let each = |n: u32| flooded(table, mac(n), PORT, 50, now);
        (1000..1100).map(each).sum::<usize>()
    };
    assert_eq!(flooded(&mut table, mac(1), PORT, 1, 0), 1);
    let later = ASSURED_AFTER_NS;
    assert_eq!(flood(&mut table, later), 400);
    assert_eq!(flooded(&mut table, mac(1), PORT, 50, later), 10);
    assert_eq!(flooded(&mut table, mac(2), PORT, 50, later), 0, "a new one");
    assert_eq!(flood(&mut table, later + SECOND_NS / 2), 200);
    assert_eq!(flooded(&mut table, mac(1), PORT, 50, later + SECOND_NS / 2), 5);
}

#[test]
fn a_forged_source_does_not_use_up_what_its_owner_may_flood() {
    let settings = TableSettings { floods_per_second: 100, ..TableSettings::default() };
    let mut table = Table::new(settings);
    assert_eq!(flooded(&mut table, mac(1), PORT, 1, 0), 1);
    let long = FrameAddresses { bytes: 44 * FLOOD_BYTES, ..addresses(Mac([0xff; 6])) };
    let long = FrameAddresses { source: mac(1), ..long };
    let forged = table.learn_address(0, mac(1), OTHER, 1).expect("an address");
    assert_eq!(forged, SourceState::Doubtful);
    for _ in 0..100 {
        table.decide(&long, OTHER, forged, 1);
    }
    assert!(flooded(&mut table, mac(1), PORT, 200, 2) >= 99);
}

#[test]
fn frames_to_a_contested_address_are_not_bounded() {
    let settings = TableSettings { floods_per_second: 10, ..TableSettings::default() };
    let mut table = Table::new(settings);
    for from in [PORT, PEER, OTHER] {
        table.learn_address(0, mac(1), from, 0).expect("an address");
    }
    let all =
        |_| table.decide(&addresses(mac(1)), Location::Port(PortSlot(9)), SourceState::Settled, 1);
    assert!((0..1000).map(all).all(|to| to == ForwardingDecision::Flood(Scope::All)));
}

#[test]
fn no_bound_is_none() {
    let settings = TableSettings { floods_per_second: 0, ..TableSettings::default() };
    assert_eq!(flooded(&mut Table::new(settings), mac(1), PORT, 100_000, 0), 100_000);
}

#[test]
fn a_query_that_peers_do_not_get_is_not_learned() {
    let settings = TableSettings { floods_per_second: 100, ..TableSettings::default() };
    let mut table = Table::new(settings);
    assert_eq!(flooded(&mut table, mac(1), PORT, 1000, 0), 100);
    let query = MembershipMessage::GeneralQuery(Family::V4, 0);
    let group = FrameAddresses { source: mac(1), ..addresses(Mac([1, 0, 0x5e, 0, 0, 1])) };
    let mut ask = |now| table.decide_membership(&query, &group, PORT, SourceState::Settled, now);
    assert_eq!(ask(0), ForwardingDecision::Flood(Scope::Ports));
    let data = addresses(Mac([1, 0, 0x5e, 9, 9, 9]));
    let to_group = |table: &Table| table.decide(&data, PEER, SourceState::Settled, 3 * SECOND_NS);
    assert_eq!(to_group(&table), ForwardingDecision::Flood(Scope::All));
    let mut ask = |now| table.decide_membership(&query, &group, PORT, SourceState::Settled, now);
    assert_eq!(ask(SECOND_NS), ForwardingDecision::Flood(Scope::All));
    assert_eq!(to_group(&table), ForwardingDecision::Flood(Scope::Members(vec![PORT])));
}

fn small(entries: usize) -> Table {
    Table::new(TableSettings { entries, ..TableSettings::default() })
}

/// Notes a frame from an address as a link does.
fn note(table: &mut Table, number: u32, from: Location, now: u64) {
    if table.confirm_address(0, mac(number), from, now).is_none() {
        table.learn_address(0, mac(number), from, now).expect("an address");
    }
}

/// A frame to an address.
fn ask(table: &Table, number: u32, from: Location, now: u64) {
    table.decide(&addresses(mac(number)), from, SourceState::Settled, now);
}

#[test]
fn a_flood_from_one_place_pushes_out_its_own_only() {
    let mut table = small(100);
    for number in 0..40 {
        note(&mut table, number, PORT, 0);
    }
    for number in 0..10_000 {
        note(&mut table, 1000 + number, PEER, 1 + u64::from(number));
    }
    assert_eq!(table.known.len(), 100);
    for number in 0..40 {
        assert_eq!(table.look_up_address(0, mac(number), 0), Some(At(PORT)), "address {number}");
    }
    // A third location gets room from the location with the most addresses.
    note(&mut table, 77, OTHER, 20_000);
    assert_eq!(table.look_up_address(0, mac(77), 20_000), Some(At(OTHER)));
    assert_eq!(table.locations[&PORT].len(), 40);
    let Room { addresses, displaced, most, .. } = table.count_room();
    assert_eq!((addresses, displaced, most), (100, 9941, Some((PEER, 59))));
}

#[test]
fn an_address_that_has_proved_itself_gives_way_to_none_that_was_seen_once() {
    const VMS: u32 = 20;
    let mut table = small(100);
    for now in [0, 2 * SECOND_NS] {
        (0..VMS).for_each(|number| note(&mut table, number, PEER, now));
    }
    assert_eq!(table.count_room().proven, VMS as usize);
    // One of their neighbours invents addresses, for longer than they are silent.
    let mut now = 2 * SECOND_NS;
    for number in 0..100_000 {
        now += SECOND_NS / 1000;
        note(&mut table, 1000 + number, PEER, now);
    }
    assert_eq!(table.known.len(), 100);
    for number in 0..VMS {
        assert_eq!(table.look_up_address(0, mac(number), now), Some(At(PEER)), "address {number}");
    }
}

#[test]
fn an_address_that_answers_has_proved_itself_at_once() {
    let mut table = small(100);
    note(&mut table, 1, PEER, 0);
    note(&mut table, 1, PEER, 1);
    assert_eq!(table.count_room().proven, 0, "it has only sent");
    ask(&table, 1, PEER, 2);
    note(&mut table, 1, PEER, 3);
    assert_eq!(table.count_room().proven, 0, "a neighbour of its own location has sent to it");
    ask(&table, 1, PORT, 4);
    assert_eq!(table.count_room().proven, 0, "it has not answered yet");
    note(&mut table, 1, PEER, 5);
    assert_eq!(table.count_room().proven, 1);
}

/// One location has addresses that all prove themselves, more than there is room for.
#[test]
fn proven_addresses_of_one_location_make_room_for_those_of_another() {
    let mut table = small(80);
    let all = |table: &mut Table, numbers: std::ops::Range<u32>, from, now| {
        numbers.for_each(|number| note(table, number, from, now));
    };
    for now in [0, 2 * SECOND_NS] {
        all(&mut table, 1000..1080, PEER, now);
    }
    assert_eq!(table.count_room().proven, 70, "a part is for new ones");
    for second in 3..15 {
        all(&mut table, 0..10, OTHER, second * SECOND_NS);
    }
    let proven = |table: &Table, at| table.locations[&at].proven.len();
    assert_eq!(
        (proven(&table, PEER), proven(&table, OTHER), table.count_room().proven),
        (60, 10, 70)
    );
    // It takes no lock with each frame.
    let refused = *table.locations[&PEER].new.first().expect("a new one");
    assert!(table.learn_address(0, refused.mac, PEER, 14 * SECOND_NS).is_ok());
    assert!(table.confirm_address(0, refused.mac, PEER, 14 * SECOND_NS).is_some());
    // An address that is too old makes room for any.
    let later = 2 * SECOND_NS + TableSettings::default().ageing_ns + 1;
    for step in 0..200 {
        note(&mut table, 5000 + step, PEER, later + u64::from(step));
    }
    assert_eq!(proven(&table, PEER), 0, "{:?}", table.count_room());
}

#[test]
fn ten_thousand_stations_that_speak_seldom_are_all_known() {
    const STATIONS: u32 = 10_000;
    let mut table = table();
    let mut now = 0;
    let mut unknown = 0;
    for round in 0..3 {
        for number in 0..STATIONS {
            now += 20_000_000_000 / u64::from(STATIONS);
            note(&mut table, number, PEER, now);
            let other = number * 7919 % STATIONS;
            unknown += u32::from(round > 0 && table.look_up_address(0, mac(other), now).is_none());
        }
    }
    assert_eq!(unknown, 0);
    assert_eq!(table.count_room().displaced, 0);
}

#[test]
fn a_port_with_a_quota_has_no_more_addresses_until_one_is_old() {
    let mut table = table();
    table.set_quota(PORT, Some(2));
    note(&mut table, 1, PORT, 0);
    note(&mut table, 2, PORT, 0);
    assert_eq!(table.learn_address(0, mac(3), PORT, 1), Err(DropReason::TooMany));
    assert_eq!(table.learn_address(0, mac(3), OTHER, 1), Ok(SourceState::Settled));
    assert_eq!(
        table.learn_address(0, mac(3), PORT, DOUBT + 2),
        Err(DropReason::TooMany),
        "nor by a move"
    );
    assert_eq!(table.look_up_address(0, mac(3), DOUBT + 2), Some(At(OTHER)));
    assert_eq!(table.confirm_address(0, mac(1), PORT, 2), Some(SourceState::Settled));
    let later = TableSettings::default().ageing_ns + 1;
    let tries = |_| table.learn_address(0, mac(4), PORT, later) == Ok(SourceState::Settled);
    assert!((0..100).any(tries));
    table.set_quota(PORT, None);
    assert_eq!(table.learn_address(0, mac(5), PORT, later), Ok(SourceState::Settled));
}

#[test]
fn a_table_that_becomes_smaller_keeps_what_has_proved_itself() {
    let mut table = table();
    for now in [0, 2 * SECOND_NS] {
        (0..20).for_each(|number| note(&mut table, number, PORT, now));
    }
    (100..300).for_each(|number| note(&mut table, number, PEER, 2 * SECOND_NS));
    table.set_settings(TableSettings { entries: 50, ..TableSettings::default() }, 3 * SECOND_NS);
    let Room { addresses, proven, displaced, .. } = table.count_room();
    assert_eq!((addresses, proven, displaced), (50, 20, 170));
    table.set_settings(TableSettings { entries: 10, ..TableSettings::default() }, 3 * SECOND_NS);
    assert_eq!(table.count_room().addresses, 10);
}

#[test]
fn the_oldest_gives_way() {
    let mut table = small(3);
    for (number, now) in [(1, 0), (2, 1), (3, 2)] {
        assert_eq!(table.learn_address(0, mac(number), PORT, now), Ok(SourceState::Settled));
    }
    assert!(table.confirm_address(0, mac(1), PORT, SECOND_NS).is_some());
    assert_eq!(table.learn_address(0, mac(4), PORT, SECOND_NS), Ok(SourceState::Settled));
    let known =
        [1, 2, 3, 4].map(|number| table.look_up_address(0, mac(number), SECOND_NS).is_some());
    assert_eq!(known, [true, false, true, true]);
}

/// docs/guide/links/forwarding.md says what a full table takes.
#[test]
fn an_entry_is_small() {
    assert!(size_of::<(AddressKey, LearnedEntry)>() <= 64);
}

#[test]
#[ignore = "a measurement"]
fn memory_of_100_000_addresses() {
    let resident_kb = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("its state");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("memory");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("a number")
    };
    let before = resident_kb();
    let mut table = table();
    for now in [0, 2 * SECOND_NS] {
        (0..100_000).for_each(|number| note(&mut table, number, PEER, now));
    }
    println!("{:?}: {} kB", table.count_room(), resident_kb() - before);
}

const DOUBT: u64 = 2 * SECOND_NS;

#[test]
fn a_vm_that_migrates_is_found_at_once_and_alone_a_little_later() {
    let mut table = table();
    assert_eq!(table.learn_address(0, mac(1), PORT, 0), Ok(SourceState::Settled));
    assert_eq!(table.confirm_address(0, mac(1), PEER, 1), None);
    assert_eq!(table.learn_address(0, mac(1), PEER, 1), Ok(SourceState::Doubtful));
    assert_eq!(table.look_up_address(0, mac(1), 1), Some(Either(PORT, PEER)));
    assert_eq!(table.entries(1).filter(|entry| entry.contested).count(), 2);
    assert_eq!(table.confirm_address(0, mac(1), PEER, DOUBT), Some(SourceState::Doubtful));
    let later = DOUBT + 1;
    assert_eq!(table.confirm_address(0, mac(1), PEER, later), None, "it is to be moved");
    assert_eq!(table.learn_address(0, mac(1), PEER, later), Ok(SourceState::Settled));
    assert_eq!(table.look_up_address(0, mac(1), later), Some(At(PEER)));
    assert_eq!(table.entries(later).filter(|entry| !entry.contested).count(), 1);
}

#[test]
fn a_move_after_silence_is_believed_like_a_bridge_believes_it() {
    let mut table = table();
    assert_eq!(table.learn_address(0, mac(1), PORT, 0), Ok(SourceState::Settled));
    assert_eq!(table.learn_address(0, mac(1), PEER, DOUBT + 1), Ok(SourceState::Settled));
    assert_eq!(table.look_up_address(0, mac(1), DOUBT + 1), Some(At(PEER)));
}

/// The owner sends 100 frames a second, the other host forges one at the worst moments: when
/// the owner's entry is about to be refreshed, and often.
#[test]
fn forged_frames_take_nothing_from_the_owner() {
    let mut table = table();
    let mut now = 0;
    for step in 0..12_000u64 {
        now += SECOND_NS / 100;
        let from_owner = addresses(mac(7));
        let source = match table.confirm_address(0, mac(1), PORT, now) {
            Some(source) => source,
            None => table.learn_address(0, mac(1), PORT, now).expect("an address"),
        };
        let from_owner = FrameAddresses { source: mac(1), ..from_owner };
        let decision = table.decide(&from_owner, PORT, source, now);
        assert_eq!(decision, ForwardingDecision::Flood(Scope::All), "frame {step} of the owner");
        if step % 100 < 3 && table.confirm_address(0, mac(1), PEER, now).is_none() {
            let _ = table.learn_address(0, mac(1), PEER, now);
        }
        match table.look_up_address(0, mac(1), now + 1) {
            Some(At(PORT) | Either(PORT, PEER)) => {}
            other => panic!("step {step}: frames to the owner go to {other:?}"),
        }
    }
}

#[test]
fn a_location_that_is_forgotten_has_no_address_any_more() {
    let mut table = table();
    table.fix_address(mac(3), PEER);
    let in_use =
        |table: &mut Table, number, from| table.learn_address(0, mac(number), from, 0).unwrap();
    in_use(&mut table, 1, PEER);
    in_use(&mut table, 2, PORT);
    in_use(&mut table, 2, PEER);
    table.forget_location(PEER);
    assert_eq!(
        [1, 2, 3].map(|number| table.look_up_address(0, mac(number), 0)),
        [None, Some(At(PORT)), None]
    );
    assert!(table.entries(0).all(|entry| entry.location == PORT && !entry.contested));
}

#[test]
fn a_fixed_address_is_believed_at_its_port_only() {
    let mut table = table();
    table.fix_address(mac(1), PORT);
    assert_eq!(table.learn_address(0, mac(1), PEER, 0), Err(DropReason::Fixed));
    assert_eq!(table.learn_address(0, mac(1), PORT, 1), Ok(SourceState::Settled));
    assert_eq!(table.confirm_address(0, mac(1), PEER, 2), None);
    assert_eq!(table.learn_address(0, mac(1), PEER, 2), Err(DropReason::Fixed));
    for vlan in [0, 7] {
        assert_eq!(table.look_up_address(vlan, mac(1), u64::MAX), Some(At(PORT)));
    }
}

#[test]
fn an_address_that_is_fixed_later_is_believed_at_its_port_only() {
    let mut table = table();
    let _ = table.learn_address(0, mac(1), PEER, 0);
    let _ = table.learn_address(0, mac(1), PORT, 1);
    let _ = table.learn_address(7, mac(1), OTHER, 1);
    table.fix_address(mac(1), PORT);
    for (vlan, elsewhere) in [(0, PEER), (7, OTHER)] {
        assert_eq!(table.confirm_address(vlan, mac(1), elsewhere, 2), None);
        assert_eq!(table.learn_address(vlan, mac(1), elsewhere, 2), Err(DropReason::Fixed));
    }
    assert_eq!(table.learn_address(0, mac(1), PORT, 3), Ok(SourceState::Settled));
    assert_eq!(table.confirm_address(0, mac(1), PORT, 4), Some(SourceState::Settled));
}

/// VMs of one tenant at three locations have one address, and another VM sends to it.
#[test]
fn a_crowded_address_is_no_way_around_the_bound_on_floods() {
    let mut table = table();
    let sender = mac(2);
    let _ = table.learn_address(0, sender, PORT, 0);
    for (location, now) in [(OTHER, 0), (PEER, 1), (Location::Peer(PeerSlot(2)), 2)] {
        let _ = table.learn_address(0, mac(1), location, now);
    }
    assert_eq!(table.look_up_address(0, mac(1), 2), Some(Anywhere));
    let to = FrameAddresses { source: sender, ..addresses(mac(1)) };
    let decide = |_| table.decide(&to, PORT, SourceState::Settled, 2);
    let decisions: Vec<_> = (0..10_000).map(decide).collect();
    let is_flood =
        |decision: &&ForwardingDecision| matches!(decision, ForwardingDecision::Flood(_));
    let floods = decisions.iter().filter(is_flood).count();
    let most = TableSettings::default().floods_per_second as usize;
    assert!((1..=most).contains(&floods), "{floods} were copied to all");
    let others = decisions.into_iter().filter(|decision| !is_flood(&decision));
    let both = ForwardingDecision::Both(OTHER, Location::Peer(PeerSlot(2)));
    assert!(others.into_iter().all(|decision| decision == both), "its owner has lost some");
}

#[test]
fn a_third_location_makes_it_a_flood_until_it_is_silent() {
    let mut table = table();
    for (location, now) in [(PORT, 0), (PEER, 1), (OTHER, 2)] {
        let _ = table.learn_address(0, mac(1), location, now);
    }
    assert_eq!(table.look_up_address(0, mac(1), 2), Some(Anywhere));
    assert_eq!(table.learn_address(0, mac(1), PORT, DOUBT + 3), Ok(SourceState::Settled));
    assert_eq!(table.look_up_address(0, mac(1), DOUBT + 3), Some(At(PORT)));
}

#[test]
fn frames_to_a_doubtful_address_go_where_they_may() {
    let mut table = table();
    for (location, now) in [(PORT, 0), (PEER, 1)] {
        let _ = table.learn_address(0, mac(1), location, now);
    }
    let decide = |from| table.decide(&addresses(mac(1)), from, SourceState::Settled, 2);
    assert_eq!(decide(OTHER), ForwardingDecision::Both(PORT, PEER));
    assert_eq!(decide(PORT), ForwardingDecision::To(PEER));
    assert_eq!(decide(PEER), ForwardingDecision::To(PORT));
    assert_eq!(decide(Location::Peer(PeerSlot(2))), ForwardingDecision::To(PORT));
}

#[test]
fn copies_of_a_doubtful_source_are_bounded() {
    let mut table = table();
    let group = FrameAddresses { source: mac(1), ..addresses(Mac([0xff; 6])) };
    let _ = table.learn_address(0, mac(1), PORT, 0);
    let mut flooded = 0;
    for now in (0..10 * SECOND_NS).step_by(1_000_000) {
        note(&mut table, 1, PORT, now);
        let source = match table.confirm_address(0, mac(1), PEER, now) {
            Some(source) => source,
            None => table.learn_address(0, mac(1), PEER, now).expect("an address"),
        };
        let decision = table.decide(&group, PEER, source, now);
        flooded += u64::from(decision == ForwardingDecision::Flood(Scope::All));
        let settled = table.decide(&group, PORT, SourceState::Settled, now);
        assert_eq!(settled, ForwardingDecision::Flood(Scope::All));
    }
    assert!((1000..=1000 + COPIES_BURST).contains(&flooded), "{flooded} in 10 s");
}

proptest! {
    #[test]
    fn lists_and_entries_agree_whatever_happens(
        steps in proptest::collection::vec((0..6u8, 0..40u32, 0..5u16, 0..400u64), 1..400),
    ) {
        let settings = TableSettings::default();
        let settings = TableSettings { entries: 20, ..settings };
        let mut table = Table::new(settings);
        table.set_quota(Location::Port(PortSlot(0)), Some(8));
        let mut now = 0;
        for (step, number, at, seconds) in steps {
            let (as_port, as_peer) = (Location::Port(PortSlot(at)), Location::Peer(PeerSlot(at)));
            let location = if at < 3 { as_port } else { as_peer };
            now += seconds * SECOND_NS / 20;
            match step {
                0..=2 => { let _ = table.learn_address(0, mac(number), location, now); }
                3 => { table.confirm_address(0, mac(number), location, now); }
                4 => ask(&table, number, location, now),
                _ if seconds < 2 => table.forget_location(location),
                _ => {}
            }
            if !table.quotas.contains_key(&Location::Port(PortSlot(0))) {
                table.set_quota(Location::Port(PortSlot(0)), Some(8));
            }
            prop_assert!(table.known.len() <= 20);
            let listed: usize = table.locations.values().map(LocationEntry::len).sum();
            prop_assert_eq!(listed, table.known.len());
            let proven = table.known.values().filter(|known| known.is_proven).count();
            prop_assert_eq!(proven, table.proven);
            for (location, LocationEntry { new, proven, .. }) in &table.locations {
                let is_bounded = *location == Location::Port(PortSlot(0));
                prop_assert!(!is_bounded || new.len() + proven.len() <= 8);
                for (keys, is_proven) in [(new, false), (proven, true)] {
                    for (index, key) in keys.iter().enumerate() {
                        let known = &table.known[key];
                        let listed = (known.location, known.index as usize, known.is_proven);
                        prop_assert_eq!(listed, (*location, index, is_proven));
                    }
                }
            }
        }
    }
}
