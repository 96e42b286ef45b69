//! A hub of many peers: its work is bounded at a time, and all are told in turn.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::hub::LOOKS;
use super::*;
use crate::slots::PeerSlot;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

fn label(number: u16) -> Label {
    Label::new(number).unwrap()
}

/// A question of an older version.
fn ask(label: Label, about: Option<u16>) -> Question {
    Question { label, about: about.map(PeerSlot), keep_s: LEAST_KEPT_S }
}

fn address(number: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number as u8], 7757))
}

/// A hub whose peers, in the slots from 1 on, all ask for each other.
fn mutual_hub(peers: u16) -> Hub {
    let mut hub = Hub::default();
    (1..=peers).for_each(|number| drop(hub.note_up(PeerSlot(number), address(number), 0)));
    ask_all(&mut hub, peers, 0);
    hub
}

fn ask_all(hub: &mut Hub, peers: u16, now_ns: u64) {
    for asks in 1..=peers {
        for about in (1..=peers).filter(|about| *about != asks) {
            hub.handle_question(PeerSlot(asks), ask(label(about), Some(about)), now_ns);
        }
    }
}

#[test]
fn many_that_ask_for_each_other_cost_a_hub_no_looks_until_they_ask_no_more() {
    const PEERS: u16 = 200;
    let mut hub = mutual_hub(PEERS);
    let pairs = usize::from(PEERS) * usize::from(PEERS - 1);
    // It tells what it could not tell as they asked.
    for step in 0..400 {
        hub.tick(step * S / 20);
    }
    let before = hub.looks;
    (20..30).for_each(|second| assert_eq!(hub.tick(second * S), []));
    assert_eq!(hub.looks, before);
    let (mut now_ns, mut ended, mut ticks) = (hub.deadline_ns().max(30 * S), 0, 0);
    while hub.deadline_ns() != u64::MAX {
        let actions = hub.tick(now_ns);
        assert!(hub.looks - before <= (1 + ticks) * 3 * LOOKS);
        ended += actions.iter().filter(|action| matches!(action, HubAction::Label { .. })).count();
        (now_ns, ticks) = (hub.deadline_ns(), ticks + 1);
    }
    assert_eq!((ended, ticks), (pairs, pairs.div_ceil(LOOKS)));
}

/// A hundred peers that move all the time could take all that a peer may be told in a second.
#[test]
fn a_peer_is_told_of_each_change_in_turn_however_many_others_change() {
    const ASKS: u16 = 300;
    const MOVING: u16 = 100;
    let mut hub = Hub::default();
    for number in (1..=200).chain([ASKS]) {
        hub.note_up(PeerSlot(number), address(1), 0);
    }
    for number in 1..=200 {
        hub.handle_question(PeerSlot(number), ask(label(1), Some(ASKS)), 0);
        hub.handle_question(PeerSlot(ASKS), ask(label(number), Some(number)), 0);
    }
    let mut known = BTreeMap::new();
    let mut hear = |actions: Vec<HubAction>| {
        for action in actions {
            let HubAction::Tell { to: PeerSlot(ASKS), message } = action else { continue };
            if let HubMessage::Known { label, standing, .. } = message {
                known.insert(label, standing);
            }
        }
    };
    for ms in 0..30_000 {
        let always = (1..=MOVING).filter(|_| ms % 100 == 0);
        for number in always.chain((MOVING + 1..=200).filter(|_| ms == 5000)) {
            hear(hub.note_up(PeerSlot(number), address(2 + (ms / 100 % 2) as u16), ms * MS));
        }
        hear(hub.tick(ms * MS));
    }
    let of_others = (MOVING + 1..=200).map(|number| known.get(&label(number)).copied());
    assert_eq!(of_others.filter(|told| *told == Some(Standing::Mutual(address(2)))).count(), 100);
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    const PEERS: u16 = 1000;
    let mut hub = mutual_hub(PEERS);
    let begin = std::time::Instant::now();
    ask_all(&mut hub, PEERS, S);
    println!("asked again by all: {:?}", begin.elapsed());
    let mut took = Vec::new();
    for second in 1..=20 {
        let begin = std::time::Instant::now();
        (0..20).for_each(|step| drop(hub.tick(second * S + step * S / 20)));
        took.push(begin.elapsed());
    }
    println!("looks of each second: {took:?}");
}
