//! Hosts and their hub, with a network between them that loses, doubles and reorders messages, and
//! a hub that lies.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::*;
use crate::handshake::testing::hello;
use crate::handshake::{Answer, Error, Hello, Machine, Outcome, Refusal, RefusalKind};
use crate::identity::testing::{host, peer, pinned};
use crate::identity::{Acceptor, Identity, Initiator, PeerId};
use crate::slots::{PeerSlot, Slot};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

fn label(number: u16) -> Label {
    Label::new(number).unwrap()
}

/// A question of an older version.
fn ask(label: Label, about: Option<u16>) -> Question {
    Question { label, about: about.map(PeerSlot), keep_s: LEAST_KEPT_S }
}

fn address(host: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host as u8], 7757))
}

/// A host with one peer behind the hub, which it calls "other".
struct Spoke {
    contact: Contact,
    initiator: Initiator,
    acceptor: Acceptor,
    found: Vec<SocketAddr>,
    dialled: Vec<Result<Box<Outcome>, Error>>,
    accepted: Vec<Result<Box<Outcome>, Error>>,
}

impl Spoke {
    fn new(own: &Identity, other: &Identity, number: u16) -> Self {
        let about = About::Keys(vec![other.public_key()]);
        Self {
            contact: Contact::new(ContactSettings { label: label(number), about }),
            initiator: own.make_initiator(&peer("other"), &pinned(other)).unwrap(),
            acceptor: own.make_acceptor(&[(peer("other"), pinned(other))]).unwrap(),
            found: Vec::new(),
            dialled: Vec::new(),
            accepted: Vec::new(),
        }
    }

    /// Keeps what concerns this host; returns what is for the hub.
    fn act(&mut self, actions: Vec<ContactAction>) -> Vec<HubMessage> {
        let mut said = Vec::new();
        for action in actions {
            match action {
                ContactAction::Send(message) => said.push(message),
                ContactAction::Dialled(result) => self.dialled.push(result),
                ContactAction::Accepted(result) => self.accepted.push(result),
                ContactAction::Found(address) => self.found.push(address),
            }
        }
        said
    }

    fn hear(&mut self, message: &HubMessage, now_ns: u64) -> Vec<HubMessage> {
        let policy = |_: &PeerId, theirs: &Hello| {
            Answer::Accept(Hello { session: 0x5678, purpose: theirs.purpose, ..hello(2) })
        };
        let actions = match message {
            HubMessage::Known { standing, kept_s, .. } => {
                self.contact.note_standing(*standing, *kept_s, now_ns)
            }
            HubMessage::FromPeer(piece) => {
                self.contact.handle_piece(piece, &self.acceptor, &policy, now_ns)
            }
            other => panic!("a hub does not say {other:?}"),
        };
        self.act(actions)
    }

    fn tick(&mut self, now_ns: u64) -> Vec<HubMessage> {
        let actions = self.contact.tick(now_ns);
        self.act(actions)
    }
}

/// A message under way.
enum UnderWay {
    ToHub { from: PeerSlot, message: HubMessage },
    ToSpoke { to: PeerSlot, message: HubMessage },
}

/// Two spokes in the slots 1 and 2, and their hub.
struct Star {
    hub: Hub,
    spokes: [Spoke; 2],
    keys: [crate::identity::PublicKey; 2],
    random: fastrand::Rng,
    lost_percent: u8,
    now_ns: u64,
    /// By time and order.
    under_way: BTreeMap<(u64, u64), UnderWay>,
    order: u64,
}

/// The slot of a spoke by its position.
fn slot_of(at: usize) -> PeerSlot {
    PeerSlot(at as u16 + 1)
}

impl Star {
    fn new(lost_percent: u8, seed: u64) -> Self {
        let (a, b) = (host(), host());
        let spokes = [Spoke::new(&a, &b, 7), Spoke::new(&b, &a, 3)];
        let mut hub = Hub::default();
        for number in 1..=2 {
            assert!(hub.note_up(PeerSlot(number), address(number), 0).is_empty());
        }
        Self {
            hub,
            spokes,
            keys: [a.public_key(), b.public_key()],
            random: fastrand::Rng::with_seed(seed),
            lost_percent,
            now_ns: S,
            under_way: BTreeMap::new(),
            order: 0,
        }
    }

    fn send_to_hub(&mut self, from: PeerSlot, message: HubMessage) {
        self.send(&message, |message| UnderWay::ToHub { from, message });
    }

    fn send_to_spoke(&mut self, to: PeerSlot, message: HubMessage) {
        self.send(&message, |message| UnderWay::ToSpoke { to, message });
    }

    fn send(&mut self, message: &HubMessage, under_way: impl Fn(HubMessage) -> UnderWay) {
        let copies = 1 + u8::from(self.random.u8(0..100) < self.lost_percent);
        for _ in 0..copies {
            if self.random.u8(0..100) >= self.lost_percent {
                let at_ns = self.now_ns + 5 * MS + self.random.u64(0..=10 * MS);
                self.order += 1;
                let message = HubMessage::decode(&message.encode()).expect("it is a message");
                self.under_way.insert((at_ns, self.order), under_way(message));
            }
        }
    }

    fn at_hub(&mut self, from: PeerSlot, message: HubMessage) {
        let actions = match message {
            HubMessage::Ask { label, about: About::Keys(keys), keep_s } => {
                let about = self.keys.iter().position(|key| keys.contains(key));
                let question = Question { label, about: about.map(slot_of), keep_s };
                self.hub.handle_question(from, question, self.now_ns)
            }
            HubMessage::ToPeer(piece) => {
                if let Some(PassedOn { to, message }) = self.hub.pass_on(from, piece, self.now_ns) {
                    self.send_to_spoke(to, message);
                }
                return;
            }
            _ => return,
        };
        self.hub_acts(actions);
    }

    fn hub_acts(&mut self, actions: Vec<HubAction>) {
        for action in actions {
            if let HubAction::Tell { to, message } = action {
                self.send_to_spoke(to, message);
            }
        }
    }

    fn run(&mut self, for_ns: u64) {
        let end_ns = self.now_ns + for_ns;
        while self.now_ns < end_ns {
            while let Some(next) = self.under_way.first_entry()
                && next.key().0 <= self.now_ns
            {
                match next.remove() {
                    UnderWay::ToHub { from, message } => self.at_hub(from, message),
                    UnderWay::ToSpoke { to, message } => {
                        let said = self.spokes[to.index() - 1].hear(&message, self.now_ns);
                        said.into_iter().for_each(|message| self.send_to_hub(to, message));
                    }
                }
            }
            for at in 0..self.spokes.len() {
                if self.spokes[at].contact.deadline_ns() <= self.now_ns {
                    let said = self.spokes[at].tick(self.now_ns);
                    said.into_iter().for_each(|message| self.send_to_hub(slot_of(at), message));
                }
            }
            let actions = self.hub.tick(self.now_ns);
            self.hub_acts(actions);
            self.now_ns += MS;
        }
    }

    /// The hub's sessions with both are up.
    fn up(&mut self) {
        let now_ns = self.now_ns;
        self.spokes.iter_mut().for_each(|spoke| spoke.contact.hub_up(0, AskPace::new(1), now_ns));
    }

    fn dial(&mut self) {
        let spoke = &mut self.spokes[0];
        let machine = Machine::dial(&spoke.initiator, hello(1)).unwrap();
        spoke.contact.dial(machine, self.now_ns);
    }
}

#[test]
fn both_have_the_same_secrets_whatever_the_hub_loses() {
    for (lost_percent, seed) in [0, 0, 10, 30, 30, 30].into_iter().zip(0..) {
        let mut star = Star::new(lost_percent, seed);
        star.up();
        star.run(200 * S);
        assert_eq!(star.spokes[0].found, [address(2)], "{lost_percent} % lost");
        assert_eq!(star.spokes[1].found, [address(1)], "{lost_percent} % lost");
        // One in which too much was lost is begun again, as a peer's machine does.
        let mut tries = 0;
        let outcome = loop {
            star.dial();
            star.run(9 * S);
            tries += 1;
            assert!(tries < 10, "{lost_percent} % lost");
            if let Some(Ok(outcome)) = star.spokes[0].dialled.pop() {
                break outcome;
            }
        };
        let accepted: Vec<_> = star.spokes[1].accepted.drain(..).flatten().collect();
        let accepted = accepted.last().expect("the other end has it, too");
        let direction = crate::handshake::Direction::ToAcceptor;
        assert_eq!(
            outcome.secrets.derive_key(direction, 0),
            accepted.secrets.derive_key(direction, 0)
        );
        assert_eq!((outcome.theirs.session, accepted.theirs.session), (0x5678, 0x1234));
    }
}

#[test]
fn one_that_does_not_ask_for_the_other_is_not_told_of() {
    let mut star = Star::new(0, 1);
    star.spokes[0].contact.hub_up(0, AskPace::new(1), star.now_ns);
    star.run(3 * S);
    assert_eq!(star.spokes[0].contact.standing(), Some(Standing::Silent));
    assert!(star.spokes[0].contact.is_relayed() && star.spokes[0].contact.address().is_none());
    star.dial();
    star.run(9 * S);
    assert!(matches!(star.spokes[0].dialled[..], [Err(Error::TimedOut { .. })]));
    assert!(star.spokes[1].accepted.is_empty() && star.spokes[1].found.is_empty());
    // Then it does, and both are told at once.
    star.spokes[1].contact.hub_up(0, AskPace::new(1), star.now_ns);
    star.run(S / 2);
    assert_eq!(star.spokes[0].contact.address(), Some(address(2)));
    assert_eq!(star.spokes[1].contact.address(), Some(address(1)));
    // And it asks no more, a moment before the first one.
    star.hub.handle_question(PeerSlot(1), ask(label(7), Some(2)), star.now_ns);
    let actions = star.hub.tick(star.now_ns + 100 * S);
    let silent = HubMessage::Known { label: label(7), standing: Standing::Silent, kept_s: 0 };
    let forgotten = [
        HubAction::Label { to: PeerSlot(2), from: PeerSlot(1), label: None },
        HubAction::Tell { to: PeerSlot(1), message: silent },
        HubAction::Label { to: PeerSlot(1), from: PeerSlot(2), label: None },
    ];
    assert_eq!(actions, forgotten);
}

#[test]
fn a_peer_that_moves_goes_or_comes_is_told_of() {
    let mut hub = Hub::default();
    hub.note_up(PeerSlot(1), address(1), 0);
    let known = |to, number, standing| {
        let to = PeerSlot(to);
        let kept_s = if standing == Standing::Unknown { 0 } else { LEAST_KEPT_S };
        let message = HubMessage::Known { label: label(number), standing, kept_s };
        HubAction::Tell { to, message }
    };
    let set_label =
        |to, from, label| HubAction::Label { to: PeerSlot(to), from: PeerSlot(from), label };
    let labelled = |to, from, number| set_label(to, from, Some(label(number)));
    let unlabelled = |to, from| set_label(to, from, None);
    assert_eq!(
        hub.handle_question(PeerSlot(1), ask(label(9), None), 0),
        [known(1, 9, Standing::Unknown)]
    );
    assert_eq!(
        hub.handle_question(PeerSlot(1), ask(label(9), Some(1)), 0),
        [known(1, 9, Standing::Unknown)]
    );
    let asked = hub.handle_question(PeerSlot(1), ask(label(7), Some(2)), 0);
    assert_eq!(asked, [labelled(1, 2, 7), known(1, 7, Standing::Down)]);
    assert_eq!(hub.note_up(PeerSlot(2), address(2), 0), [known(1, 7, Standing::Silent)]);
    let mutual = Standing::Mutual;
    let asked = hub.handle_question(PeerSlot(2), ask(label(3), Some(1)), 0);
    let both = [known(2, 3, mutual(address(1))), known(1, 7, mutual(address(2)))];
    assert_eq!(asked, [&[labelled(2, 1, 3)][..], &both].concat());
    assert_eq!(hub.note_up(PeerSlot(2), address(9), 0), [known(1, 7, mutual(address(9)))]);
    assert_eq!(hub.note_up(PeerSlot(2), address(9), 0), []);
    // Asking again is answered, and labels may change.
    assert_eq!(
        hub.handle_question(PeerSlot(1), ask(label(7), Some(2)), S),
        [known(1, 7, mutual(address(9)))]
    );
    let asked = hub.handle_question(PeerSlot(1), ask(label(8), Some(2)), S);
    assert_eq!(asked, [labelled(1, 2, 8), known(1, 8, mutual(address(9)))]);
    let down = hub.note_down(PeerSlot(2), S);
    assert_eq!(
        down,
        [unlabelled(2, 1), known(1, 8, Standing::Silent), known(1, 8, Standing::Down)]
    );
    assert_eq!(hub.remove_peer(PeerSlot(2), S), [unlabelled(1, 2), known(1, 8, Standing::Unknown)]);
    assert_eq!(
        hub.handle_question(PeerSlot(1), ask(label(8), None), S),
        [known(1, 8, Standing::Unknown)]
    );
}

#[test]
fn a_hub_that_lies_about_addresses_has_no_datagram_sent_to_this_host_or_to_many() {
    let mut star = Star::new(0, 1);
    star.up();
    for lie in [
        "127.0.0.1:22",
        "[::1]:22",
        "0.0.0.0:7757",
        "[::]:7757",
        "224.0.0.1:7757",
        "[ff02::1]:7757",
        "255.255.255.255:7757",
        "192.0.2.1:0",
        "0.1.2.3:7757",
        "[::ffff:127.0.0.1]:22",
    ] {
        let standing = Standing::Mutual(lie.parse().unwrap());
        let lie = HubMessage::Known { label: label(7), standing, kept_s: LEAST_KEPT_S };
        star.spokes[0].hear(&HubMessage::decode(&lie.encode()).unwrap(), S);
        assert_eq!(star.spokes[0].contact.address(), None, "{lie:?}");
        assert!(star.spokes[0].found.is_empty(), "{lie:?}");
    }
}

#[test]
fn a_hub_that_answers_in_the_place_of_the_peer_is_not_believed() {
    let (a, b, hub) = (host(), host(), host());
    let mut spoke = Spoke::new(&a, &b, 7);
    let policy = |_: &PeerId, _: &Hello| {
        Answer::Refuse(Refusal::new(RefusalKind::Other, "a hub has no sessions for peers"))
    };
    let acceptor = hub.make_acceptor(&[(peer("a"), pinned(&a))]).unwrap();
    let mut between = Exchange::new(0, false, Machine::accept(&acceptor).unwrap(), S);
    spoke.contact.dial(Machine::dial(&spoke.initiator, hello(1)).unwrap(), S);
    let mut said = spoke.tick(S);
    for _ in 0..20 {
        let mut back = Vec::new();
        for message in said.drain(..) {
            let HubMessage::ToPeer(piece) = message else { continue };
            between.receive_piece(&piece, &policy, S);
            let of_dial = |back: Piece| Piece { exchange: piece.exchange, ..back };
            back.extend(between.take_due(piece.label, S).into_iter().map(of_dial));
        }
        for piece in back {
            said.extend(spoke.hear(&HubMessage::FromPeer(piece), S));
        }
    }
    assert!(matches!(&spoke.dialled[..], [Err(error)] if error.is_of_certificate()));
}

#[test]
fn handshakes_that_a_hub_invents_or_repeats_are_begun_at_a_rate() {
    let (a, b) = (host(), host());
    let mut spoke = Spoke::new(&a, &b, 7);
    let mut dialling = Spoke::new(&b, &a, 3);
    dialling.contact.dial(Machine::dial(&dialling.initiator, hello(1)).unwrap(), S);
    let first = dialling.tick(S);
    let mut answered = 0;
    for number in 0..1000 {
        for message in &first {
            let HubMessage::ToPeer(piece) = message else { continue };
            let piece = Piece { exchange: number, label: label(7), ..piece.clone() };
            let said = spoke.hear(&HubMessage::FromPeer(piece), S);
            let is_first = |piece: &Piece| piece.offset == 0 && !piece.bytes.is_empty();
            answered += said
                .iter()
                .filter(|said| matches!(said, HubMessage::ToPeer(piece) if is_first(piece)))
                .count();
        }
    }
    assert!((1..=4).contains(&answered), "{answered} handshakes were begun");
    assert!(spoke.accepted.is_empty());
}

#[test]
fn a_spoke_cannot_have_the_hub_flood_another() {
    let mut hub = Hub::default();
    for (number, other) in [(1, 2), (2, 1)] {
        hub.note_up(PeerSlot(number), address(number), 0);
        hub.handle_question(PeerSlot(number), ask(label(number), Some(other)), 0);
    }
    let piece = |number| Piece {
        label: label(number),
        exchange: 1,
        from_initiator: true,
        offset: 0,
        received: 0,
        bytes: vec![0; 1000],
    };
    let passed =
        (0..100_000_u64).filter(|at| hub.pass_on(PeerSlot(1), piece(1), at * S / 10_000).is_some());
    let passed = passed.count();
    assert!((200..=300).contains(&passed), "{passed} in ten seconds");
    assert_eq!(hub.pass_on(PeerSlot(1), piece(5), 100 * S), None, "a label that nobody has");
    let to = hub.pass_on(PeerSlot(2), piece(2), 100 * S).unwrap();
    assert_eq!(to, PassedOn { to: PeerSlot(1), message: HubMessage::FromPeer(piece(1)) });
}

/// A spoke asks, and takes it back, again and again: the other hears of it at a rate, and in the
/// end how it is.
#[test]
fn a_peer_is_told_what_another_does_at_a_rate_and_at_last_how_it_is() {
    let mut hub = Hub::default();
    hub.note_up(PeerSlot(1), address(1), 0);
    hub.note_up(PeerSlot(2), address(2), 0);
    hub.handle_question(PeerSlot(2), ask(label(2), Some(1)), 0);
    let mut told = Vec::new();
    let mut hear = |actions: Vec<HubAction>| {
        told.extend(actions.into_iter().filter_map(|action| match action {
            HubAction::Tell { to: PeerSlot(2), message } => Some(message),
            _ => None,
        }));
    };
    let seconds = 10;
    for at in 0..seconds * 1000 {
        let now_ns = at * MS;
        hear(hub.handle_question(PeerSlot(1), ask(label(1), (at % 2 == 0).then_some(2)), now_ns));
        // As one that moves to and fro, too.
        hear(hub.note_up(PeerSlot(1), address(3 + at as u16 % 2), now_ns));
        hear(hub.tick(now_ns));
    }
    hear(hub.handle_question(PeerSlot(1), ask(label(1), Some(2)), seconds * S));
    for second in seconds..seconds + 5 {
        hear(hub.tick(second * S));
    }
    assert!((2..40).contains(&told.len()), "{} in {seconds} s", told.len());
    let last = told.last();
    let Some(HubMessage::Known { label: told_of, standing, .. }) = last else { panic!("{last:?}") };
    assert_eq!((*told_of, *standing), (label(2), Standing::Mutual(address(4))));
}

#[test]
fn questions_are_answered_however_much_others_do() {
    let mut hub = Hub::default();
    (1..=200).for_each(|number| drop(hub.note_up(PeerSlot(number), address(1), 0)));
    (2..=200)
        .for_each(|number| drop(hub.handle_question(PeerSlot(number), ask(label(1), Some(1)), 0)));
    (2..=200).for_each(|number| {
        drop(hub.handle_question(PeerSlot(1), ask(label(number), Some(number)), 0))
    });
    for at in 0..10_000 {
        let number = 2 + at as u16 % 199;
        hub.note_up(PeerSlot(number), address(at as u16 % 7), at * MS / 100);
    }
    let answer = hub.handle_question(PeerSlot(1), ask(label(2), Some(2)), S);
    assert!(matches!(&answer[..], [HubAction::Tell { to: PeerSlot(1), .. }]), "{answer:?}");
}

#[test]
fn one_that_asks_anew_has_no_more_pieces_passed_on() {
    let mut hub = Hub::default();
    for (number, other) in [(1, 2), (2, 1)] {
        hub.note_up(PeerSlot(number), address(number), 0);
        hub.handle_question(PeerSlot(number), ask(label(number), Some(other)), 0);
    }
    let piece = Piece {
        label: label(1),
        exchange: 1,
        from_initiator: true,
        offset: 0,
        received: 0,
        bytes: vec![0; 1000],
    };
    let passed = (0..1000).filter(|_| {
        hub.handle_question(PeerSlot(1), ask(label(1), None), 0);
        hub.handle_question(PeerSlot(1), ask(label(1), Some(2)), 0);
        hub.pass_on(PeerSlot(1), piece.clone(), 0).is_some()
    });
    let passed = passed.count();
    assert!((1..=128).contains(&passed), "{passed} at once");
}

proptest::proptest! {
    /// Whatever comes, nothing panics, and what is said in answer is bounded.
    #[test]
    fn any_messages_are_harmless(
        messages in proptest::collection::vec(message::tests::messages(), 1..60),
    ) {
        let mut star = Star::new(0, 1);
        star.up();
        star.dial();
        for message in messages {
            if matches!(message, HubMessage::Known { .. } | HubMessage::FromPeer(_)) {
                let said = star.spokes[0].hear(&message, star.now_ns);
                assert!(said.len() < 20);
            } else {
                star.at_hub(PeerSlot(1), message);
            }
        }
    }
}
