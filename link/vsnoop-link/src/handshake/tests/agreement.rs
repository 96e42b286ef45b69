//! Messages between the ends, and the keys that they derive.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::compress::{Codecs, CompressionLimits};
use crate::handshake::testing::{Pair, hello};
use crate::handshake::*;

fn refusal(pair: &Pair) -> Refusal {
    let (a, b) = pair.shake();
    let (a, b) = (a.unwrap_err(), b.unwrap_err());
    match (&a, &b) {
        (Error::RefusedBy { refusal: at_a, .. }, Error::Refused { refusal: at_b, .. }) => {
            assert_eq!(at_a, at_b);
            assert!(a.to_string().starts_with("peer b: it refuses us:"), "{a}");
            at_a.clone()
        }
        _ => panic!("{a} / {b}"),
    }
}

fn framed(message: &Value) -> Vec<u8> {
    let json = message.to_string();
    let mut bytes = (json.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

#[test]
fn the_agreement_is_what_both_can_do() {
    let mut pair = Pair::pinned();
    pair.dials = Hello { connections: 8, epoch: 7, ..pair.dials };
    pair.answer = Answer::Accept(Hello { epoch: 3, ..hello(2) });
    let (a, b) = pair.shake();
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.agreed, b.agreed);
    let expected = Agreed { version: 2, epoch: 7, transport: HelloTransport::Udp, connections: 4 };
    assert_eq!(a.agreed, expected);
    assert_eq!((a.theirs, b.theirs), (b.ours, a.ours));
}

#[test]
fn each_end_learns_what_the_other_one_decompresses() {
    let mut pair = Pair::pinned();
    let lz4 = Codecs { lz4: true, zstd: false };
    let little =
        CompressionLimits { codecs: lz4, flows: 0, dictionaries: 1, ..CompressionLimits::MOST };
    pair.dials.accepts = little;
    pair.answer = Answer::Accept(Hello { accepts: CompressionLimits::NONE, ..hello(2) });
    let (a, b) = pair.shake();
    assert_eq!(a.unwrap().theirs.accepts, CompressionLimits::NONE);
    assert_eq!(b.unwrap().theirs.accepts, little);
}

#[test]
fn a_connection_says_which_session_it_is_of() {
    let mut pair = Pair::pinned();
    let connection = Purpose::Data { session: 0x5678, index: 3, direction: Direction::ToInitiator };
    pair.dials.purpose = connection;
    let (a, b) = pair.shake();
    assert_eq!(b.unwrap().theirs.purpose, connection);
    assert_eq!(a.unwrap().theirs.purpose, connection);
}

#[test]
fn another_network_is_refused_by_name() {
    let mut pair = Pair::pinned();
    pair.dials.network = "home".into();
    let refusal = refusal(&pair);
    assert_eq!(refusal.kind, RefusalKind::Network);
    assert!(refusal.reason.contains("\"home\"") && refusal.reason.contains("\"office\""));
}

#[test]
fn another_transport_is_refused_by_name() {
    let mut pair = Pair::pinned();
    pair.dials.transport = HelloTransport::UdpPlain;
    let refusal = refusal(&pair);
    assert_eq!(refusal.kind, RefusalKind::Transport);
    assert!(refusal.reason.contains("udp-plain"), "{refusal}");
}

#[test]
fn a_host_that_calls_itself_is_refused() {
    let mut pair = Pair::pinned();
    pair.dials.instance = 2;
    assert_eq!(refusal(&pair).kind, RefusalKind::Itself);
}

#[test]
fn the_owners_refusal_reaches_the_peer() {
    let mut pair = Pair::pinned();
    pair.answer = Answer::Refuse(Refusal::new(RefusalKind::Busy, "come\nback\x1b[2J later"));
    let refusal = refusal(&pair);
    assert_eq!(refusal.kind, RefusalKind::Busy);
    assert_eq!(refusal.reason, "come?back?[2J later");
}

#[test]
fn a_version_without_a_common_one_is_refused_whatever_else_it_says() {
    let future = json!({"versions": {"min": 7, "max": 9}, "everything": "else"});
    let error = Hello::decode(&framed(&future)[2..]).unwrap_err();
    assert_eq!(error, BadHello::Versions(Versions { min: 7, max: 9 }));
    let mut pair = Pair::pinned();
    pair.dials.versions = Versions { min: 3, max: 4 };
    let refusal = refusal(&pair);
    assert_eq!(refusal.kind, RefusalKind::Version);
    assert!(refusal.reason.contains("3 to 4"), "{refusal}");
}

#[test]
fn a_newer_version_that_still_speaks_ours_gets_through() {
    let mut pair = Pair::pinned();
    pair.dials.versions = Versions { min: 2, max: 5 };
    let (a, b) = pair.shake();
    assert_eq!(a.unwrap().agreed.version, 2);
    assert_eq!(b.unwrap().agreed.version, 2);
}

#[test]
fn fields_of_newer_and_older_versions_do_no_harm() {
    let mut newer = serde_json::to_value(hello(1)).unwrap();
    newer["invented_later"] = json!({"a": [1, 2]});
    newer["versions"]["also"] = json!(true);
    let decoded = Hello::decode(newer.to_string().as_bytes()).unwrap();
    assert_eq!(decoded, hello(1));
    let older = json!({
        "versions": {"min": 2, "max": 2}, "purpose": "control", "network": "office",
        "instance": 1, "session": 2, "transport": "udp", "mtu_bytes": 1500,
    });
    let decoded = Hello::decode(older.to_string().as_bytes()).unwrap();
    assert_eq!((decoded.connections, decoded.epoch), (1, 0));
    assert_eq!(decoded.accepts, CompressionLimits::NONE);
    let mut unknown = serde_json::to_value(hello(1)).unwrap();
    unknown["transport"] = json!("pigeon");
    let decoded = Hello::decode(unknown.to_string().as_bytes()).unwrap();
    assert_eq!(decoded.transport, HelloTransport::Unknown);
    let refused = json!({"refused": {"kind": "full-moon", "reason": "no", "since": 3}});
    let reply = Reply::decode(refused.to_string().as_bytes()).unwrap();
    assert_eq!(reply, Reply::Refused(Refusal::new(RefusalKind::Other, "no")));
}

#[test]
fn a_message_survives_its_encoding() {
    let connection =
        Purpose::Data { session: u32::MAX, index: 255, direction: Direction::ToAcceptor };
    for hello in [hello(u64::MAX), Hello { purpose: connection, ..hello(0) }] {
        let bytes = hello.encode().unwrap();
        assert_eq!(usize::from(u16::from_be_bytes([bytes[0], bytes[1]])), bytes.len() - 2);
        assert_eq!(Hello::decode(&bytes[2..]), Ok(hello));
    }
}

#[test]
fn what_is_too_large_is_neither_sent_nor_read() {
    for hello in [
        Hello { network: "x".repeat(65), ..hello(1) },
        Hello { takes: vec!["10.0.0.0/8".parse().unwrap(); MOST_TAKES + 1], ..hello(1) },
        Hello { connections: 0, ..hello(1) },
    ] {
        assert!(hello.encode().is_err());
        let bytes = serde_json::to_vec(&hello).unwrap();
        assert!(Hello::decode(&bytes).is_err());
    }
    let mut padded = serde_json::to_vec(&hello(1)).unwrap();
    padded.resize(MOST_BYTES, b' ');
    assert!(Hello::decode(&padded).is_ok());
    padded.push(b' ');
    assert_eq!(Hello::decode(&padded), Err(BadHello::Size(MOST_BYTES + 1)));
}

#[test]
fn an_answer_beyond_what_was_asked_for_is_refused() {
    let ours = hello(1);
    let theirs = hello(2);
    let good = Agreed::choose(&ours, &theirs).unwrap();
    assert_eq!(good.verify(&ours, &theirs), Ok(()));
    let with = |change: &dyn Fn(&mut Agreed, &mut Hello)| {
        let (mut agreed, mut theirs) = (good.clone(), theirs.clone());
        change(&mut agreed, &mut theirs);
        agreed.verify(&ours, &theirs).unwrap_err().to_string()
    };
    assert_eq!(with(&|a, _| a.version = 3), "version");
    assert_eq!(with(&|a, _| a.transport = HelloTransport::UdpPlain), "transport");
    assert_eq!(with(&|a, _| a.connections = 5), "connections");
    assert_eq!(with(&|a, _| a.connections = 0), "connections");
    assert_eq!(with(&|_, t| t.network = "home".into()), "network");
    assert_eq!(with(&|_, t| t.instance = 1), "instance");
    let connection = Purpose::Data { session: 1, index: 0, direction: Direction::ToInitiator };
    assert_eq!(with(&|_, t| t.purpose = connection), "purpose");
}

#[test]
fn both_ends_export_the_same_keys_and_no_two_are_alike() {
    let mut pair = Pair::pinned();
    let mut keys = HashSet::new();
    let mut nonces = HashSet::new();
    for epoch in [0, 1, 256] {
        pair.dials.epoch = epoch;
        let (a, b) = pair.shake();
        let (a, b) = (a.unwrap().secrets, b.unwrap().secrets);
        assert_eq!(a.epoch(), epoch);
        for direction in [Direction::ToAcceptor, Direction::ToInitiator] {
            for stream in [0, 1, 255] {
                let key = *a.derive_key(direction, stream);
                assert_eq!(key, *b.derive_key(direction, stream));
                assert_eq!(a.nonce_base(direction, stream), b.nonce_base(direction, stream));
                assert!(keys.insert(key));
                assert!(keys.insert(std::array::from_fn(|i| key[i % 16])), "halves are alike");
                assert!(nonces.insert(*a.nonce_base(direction, stream)));
                assert_ne!(key[..12], *a.nonce_base(direction, stream));
            }
        }
    }
}

#[test]
fn the_epoch_alone_makes_other_keys() {
    let (a, _) = Pair::pinned().shake();
    let tls = a.unwrap().tls;
    let key = |epoch| *Secrets::export(&tls, epoch).unwrap().derive_key(Direction::ToAcceptor, 0);
    assert_ne!(key(1), key(2));
    assert_eq!(key(1), key(1));
}

#[test]
fn a_secret_is_not_shown_to_a_log() {
    let (a, _) = Pair::pinned().shake();
    assert_eq!(format!("{:?}", a.unwrap().secrets), "Secrets { epoch: 0 }");
}
