//! How much hosts ask their hub, and how much of that a hub takes.

use std::net::SocketAddr;

use super::*;
use crate::slots::PeerSlot;

const S: u64 = 1_000_000_000;
/// The slot of the host that asks.
const ASKS: PeerSlot = PeerSlot(0);
/// Peers behind the hub, in the slots from 1 on.
const PEERS: usize = 1000;

fn address(number: u16) -> SocketAddr {
    SocketAddr::from(([198, 51, (number / 250) as u8, (number % 250) as u8], 7757))
}

/// A host that asks its hub for all peers there, and how many questions it has sent.
struct Host {
    contacts: Vec<Contact>,
    /// By second.
    asked: Vec<usize>,
}

impl Host {
    fn with_peers(peers: usize) -> Self {
        let contacts = (1..=peers).map(|number| {
            let about = About::Subject(format!("h{number}.example"));
            let label = Label::new(number as u16).unwrap();
            Contact::new(ContactSettings { label, about })
        });
        let mut contacts: Vec<_> = contacts.collect();
        let pace = AskPace::new(peers);
        contacts.iter_mut().enumerate().for_each(|(turn, contact)| contact.hub_up(turn, pace, 0));
        Self { contacts, asked: Vec::new() }
    }

    /// Runs until a time. `hub` gets the number of who is asked for, how long that is to be
    /// remembered, and the time; and says what it knows.
    fn run(&mut self, end_s: u64, mut hub: impl FnMut(u16, u16, u64) -> Option<HubMessage>) {
        self.asked.resize(end_s as usize, 0);
        loop {
            let due =
                self.contacts.iter().enumerate().map(|(at, known)| (known.deadline_ns(), at)).min();
            let (now_ns, at) = due.unwrap();
            if now_ns >= end_s * S {
                return;
            }
            for action in self.contacts[at].tick(now_ns) {
                let ContactAction::Send(HubMessage::Ask { keep_s, .. }) = action else {
                    panic!("it does {action:?}")
                };
                self.asked[(now_ns / S) as usize] += 1;
                if let Some(known) = hub(1 + at as u16, keep_s, now_ns) {
                    self.hear(&known, now_ns);
                }
            }
        }
    }

    fn hear(&mut self, message: &HubMessage, now_ns: u64) {
        let HubMessage::Known { label, standing, kept_s } = message else { panic!("{message:?}") };
        let contact = &mut self.contacts[usize::from(label.number()) - 1];
        contact.note_standing(*standing, *kept_s, now_ns);
    }

    fn asked_in(&self, seconds: std::ops::Range<usize>) -> usize {
        self.asked[seconds].iter().sum()
    }
}

/// The first message of the hub to a host.
fn told_to(host: PeerSlot, actions: Vec<HubAction>) -> Option<HubMessage> {
    let mut told = actions.into_iter().filter_map(|action| match action {
        HubAction::Tell { to, message } if to == host => Some(message),
        _ => None,
    });
    told.next()
}

fn question(peer: u16, keep_s: u16) -> Question {
    Question { label: Label::new(peer).unwrap(), about: Some(PeerSlot(peer)), keep_s }
}

#[test]
fn a_host_of_a_thousand_peers_asks_few_times_and_no_question_is_forgotten() {
    let (mut host, mut hub) = (Host::with_peers(PEERS), Hub::default());
    (0..=PEERS as u16).for_each(|number| drop(hub.note_up(PeerSlot(number), address(number), 0)));
    host.run(600, |about, keep_s, now_ns| {
        let ended = hub.tick(now_ns);
        assert_eq!(ended, [], "a question was forgotten");
        assert!(hub.takes_question(ASKS, now_ns), "at {now_ns}");
        told_to(ASKS, hub.handle_question(ASKS, question(about, keep_s), now_ns))
    });
    assert_eq!(host.asked_in(0..8), PEERS, "each is asked for within some seconds");
    let settled = host.asked_in(8..600);
    assert!((500..=1800).contains(&settled), "{settled} in ten minutes");
    // One of them asks for the host, and both are told at once.
    let mutual = hub.handle_question(
        PeerSlot(500),
        Question { about: Some(ASKS), ..question(1, 30) },
        600 * S,
    );
    host.hear(&told_to(ASKS, mutual).expect("the host is told"), 600 * S);
    assert_eq!(host.contacts[499].address(), Some(address(500)));
    assert!(host.contacts.iter().all(|contact| contact.is_labelled(600 * S)));
}

#[test]
fn a_host_of_few_peers_asks_for_each_every_few_seconds() {
    let mut host = Host::with_peers(3);
    host.run(100, |about, keep_s, _| {
        let label = Label::new(about).unwrap();
        Some(HubMessage::Known { label, standing: Standing::Down, kept_s: keep_s })
    });
    let asked = host.asked_in(0..100);
    assert!((30..=60).contains(&asked), "{asked} in 100 s");
}

/// It takes none of its questions, or has none of its peers.
#[test]
fn a_hub_without_answers_is_asked_less_and_less() {
    for standing in [None, Some(Standing::Unknown)] {
        let mut host = Host::with_peers(MOST_ASKED);
        host.run(1200, |about, _, _| {
            let label = Label::new(about).unwrap();
            standing.map(|standing| HubMessage::Known { label, standing, kept_s: 0 })
        });
        let most = host.asked.iter().max().unwrap();
        assert!(*most <= 1 + ASKS_PER_S as usize, "{most} in a second");
        let asked = host.asked_in(0..1200);
        assert!((2 * MOST_ASKED..=7 * MOST_ASKED).contains(&asked), "{asked} in 20 minutes");
    }
}

/// Hubs of older versions do not say how long they remember: 30 s.
#[test]
fn an_older_hub_forgets_no_question() {
    let (mut host, mut hub) = (Host::with_peers(100), Hub::default());
    (0..=100).for_each(|number| drop(hub.note_up(PeerSlot(number), address(number), 0)));
    host.run(120, |about, _, now_ns| {
        assert_eq!(hub.tick(now_ns), [], "a question was forgotten");
        told_to(ASKS, hub.handle_question(ASKS, question(about, LEAST_KEPT_S), now_ns))
    });
}

#[test]
fn a_question_that_is_taken_back_is_forgotten_at_once() {
    let mut hub = Hub::default();
    (1..=2).for_each(|number| drop(hub.note_up(PeerSlot(number), address(number), 0)));
    hub.handle_question(PeerSlot(1), question(2, 7200), 0);
    hub.handle_question(PeerSlot(2), question(1, 7200), 0);
    let contact = Host::with_peers(2).contacts.pop().unwrap();
    let HubMessage::Ask { label, keep_s, .. } = contact.ask_no_more() else { unreachable!() };
    let actions =
        hub.handle_question(PeerSlot(1), Question { label, about: Some(PeerSlot(2)), keep_s }, S);
    assert!(
        actions.contains(&HubAction::Label { to: PeerSlot(1), from: PeerSlot(2), label: None }),
        "{actions:?}"
    );
    let told = told_to(PeerSlot(2), actions);
    let standing = Some(Standing::Silent);
    assert!(matches!(told, Some(HubMessage::Known { standing: now, .. }) if Some(now) == standing));
}

/// Forty spokes ask as fast as they can, for ten seconds.
#[test]
fn spokes_that_ask_all_the_time_take_no_question_from_another() {
    const HOSTILE: usize = 40;
    const SECONDS: usize = 10;
    let mut hub = Hub::default();
    let (mut taken, mut of_honest) = ([0; HOSTILE], 0);
    for ms in 0..1000 * SECONDS as u64 {
        for (spoke, taken) in taken.iter_mut().enumerate() {
            *taken += usize::from(hub.takes_question(PeerSlot(1 + spoke as u16), ms * S / 1000));
        }
        // A host that was answered asks four times a second at the most.
        if ms % 250 == 0 {
            of_honest += usize::from(hub.takes_question(ASKS, ms * S / 1000));
        }
    }
    assert_eq!(of_honest, 4 * SECONDS);
    let all: usize = taken.iter().sum();
    let most = HOSTILE * (32 + 8 * SECONDS) + 4096 * (1 + SECONDS);
    assert!((most / 2..=most).contains(&all), "{all} of at most {most}");
    let each = 32 + 8 * SECONDS + ASKS_PER_S as usize * (2 + SECONDS);
    assert!(taken.iter().all(|taken| *taken <= each), "{taken:?}");
}

#[test]
fn a_change_is_told_once_more() {
    let mut hub = Hub::default();
    (1..=2).for_each(|number| drop(hub.note_up(PeerSlot(number), address(number), 0)));
    hub.handle_question(PeerSlot(1), question(2, 7200), 0);
    let lost = told_to(PeerSlot(1), hub.handle_question(PeerSlot(2), question(1, 7200), S));
    let mutual = Standing::Mutual(address(2));
    let standing_of = |told: &Option<HubMessage>| match told {
        Some(HubMessage::Known { standing, .. }) => Some(*standing),
        _ => None,
    };
    let is_mutual = |told: &Option<HubMessage>| standing_of(told) == Some(mutual);
    assert!(is_mutual(&lost), "{lost:?}");
    let told: Vec<_> = (1..10).map(|second| told_to(PeerSlot(1), hub.tick(second * S))).collect();
    assert_eq!(told.iter().flatten().count(), 1, "{told:?}");
    assert!(told.iter().any(is_mutual), "{told:?}");
}
