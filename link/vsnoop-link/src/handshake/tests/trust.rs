//! Which callers are accepted, and the errors that others get.

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

use crate::handshake::testing::{Pair, hello};
use crate::handshake::*;
use crate::identity::test_authority::{TestAuthority, Validity};
use crate::identity::testing::{host, load, peer, pinned};
use crate::identity::{Identity, generate_key};

/// The errors of both ends after a failed handshake.
fn failures(pair: &Pair) -> (String, String) {
    let (a, b) = pair.shake();
    (a.unwrap_err().to_string(), b.unwrap_err().to_string())
}

/// Hosts a and b with certificates of one authority, as valid as wanted.
fn named(a: Validity, b: Validity) -> Pair {
    let authority = TestAuthority::new("ca");
    let a = authority.host("a.example", a);
    let b = authority.host("b.example", b);
    Pair::new(&a, &b, authority.trust("a.example"), authority.trust("b.example"))
}

#[test]
fn hosts_with_certificates_of_one_authority_get_through() {
    let (a, b) = named(Validity::Now, Validity::Now).shake();
    assert_eq!(a.unwrap().peer, peer("b"));
    assert_eq!(b.unwrap().peer, peer("a"));
}

#[test]
fn one_listener_knows_pinned_and_named_peers_apart() {
    let authority = TestAuthority::new("ca");
    let listener = authority.host("listener.example", Validity::Now);
    let by_key = [host(), host()];
    let by_name =
        ["three.example", "four.example"].map(|name| (name, authority.host(name, Validity::Now)));
    let mut peers = vec![(peer("one"), pinned(&by_key[0])), (peer("two"), pinned(&by_key[1]))];
    peers.extend(by_name.iter().map(|(name, _)| (peer(name), authority.trust(name))));
    let acceptor = listener.make_acceptor(&peers).unwrap();
    let callers = by_key.iter().chain(by_name.iter().map(|(_, host)| host));
    let ways_to_know_the_listener = [pinned(&listener), authority.trust("listener.example")];
    for (caller, (name, _)) in callers.zip(&peers) {
        for trust in &ways_to_know_the_listener {
            let pair = Pair {
                initiator: caller.make_initiator(&peer("listener"), trust).unwrap(),
                acceptor: acceptor.clone(),
                dials: hello(1),
                answer: Answer::Accept(hello(2)),
            };
            let (_, called) = pair.shake();
            assert_eq!(&called.unwrap().peer, name);
        }
    }
}

#[test]
fn a_host_with_another_key_than_the_pinned_one_is_not_the_peer() {
    let (a, b, c) = (host(), host(), host());
    let (a_says, b_says) = failures(&Pair::new(&a, &c, pinned(&a), pinned(&b)));
    assert!(a_says.starts_with("peer b: presented key"), "{a_says}");
    assert!(a_says.contains(&c.public_key().to_string()), "{a_says}");
    assert!(a_says.contains(&format!("not the pinned {}", b.public_key())), "{a_says}");
    assert!(b_says.contains("does not know our key"), "{b_says}");
    assert!(b_says.contains(&c.public_key().to_string()), "{b_says}");
}

#[test]
fn a_listener_without_peers_refuses_everyone() {
    let (a, b) = (host(), host());
    let mut pair = Pair::new(&a, &b, pinned(&a), pinned(&b));
    pair.acceptor = b.make_acceptor(&[]).unwrap();
    let (a, b) = pair.shake();
    assert!(a.is_err() && b.is_err());
}

#[test]
fn a_stolen_certificate_is_worth_nothing_without_its_key() {
    let authority = TestAuthority::new("ca");
    let a = authority.host("a.example", Validity::Now);
    let b = authority.host("b.example", Validity::Now);
    let thief = host();
    for a_is in [pinned(&a), authority.trust("a.example")] {
        let pair = Pair {
            initiator: thief
                .make_initiator(&peer("b"), &pinned(&b))
                .unwrap()
                .with_certificates_of(&a, &thief),
            acceptor: b.make_acceptor(&[(peer("a"), a_is)]).unwrap(),
            dials: hello(1),
            answer: Answer::Accept(hello(2)),
        };
        let (_, called) = pair.shake();
        let says = called.unwrap_err().to_string();
        assert!(says.contains("without having that key"), "{says}");
    }
}

#[test]
fn an_expired_certificate_is_refused_in_both_roles() {
    let (a, b) = failures(&named(Validity::Past, Validity::Now));
    assert!(b.contains("has expired") && b.contains("days ago"), "{b}");
    assert!(a.contains("our certificate is not valid"), "{a}");
    let (a, b) = failures(&named(Validity::Now, Validity::Past));
    assert!(a.starts_with("peer b: presented a certificate that has expired"), "{a}");
    assert!(b.contains("our certificate is not valid"), "{b}");
}

#[test]
fn a_certificate_of_the_future_is_refused_in_both_roles() {
    let (_, b) = failures(&named(Validity::Future, Validity::Now));
    assert!(b.contains("not valid yet") && b.contains("days from now"), "{b}");
    let (a, _) = failures(&named(Validity::Now, Validity::Future));
    assert!(a.contains("not valid yet") && a.contains("clocks"), "{a}");
}

#[test]
fn a_certificate_with_another_name_is_refused_in_both_roles() {
    let authority = TestAuthority::new("ca");
    let a = authority.host("a.example", Validity::Now);
    let b = authority.host("b.example", Validity::Now);
    let (a_is, b_is) = (authority.trust("a.example"), authority.trust("b.example"));
    let other = authority.trust("c.example");
    let (says, _) = failures(&Pair::new(&a, &b, a_is, other.clone()));
    assert!(says.contains("certificate for b.example, not for c.example;"), "{says}");
    let (_, says) = failures(&Pair::new(&a, &b, other, b_is));
    assert!(says.contains("the name of no peer"), "{says}");
}

#[test]
fn a_certificate_of_another_authority_is_refused_in_both_roles() {
    let (ours, other) = (TestAuthority::new("ca"), TestAuthority::new("other"));
    let a = ours.host("a.example", Validity::Now);
    let b = other.host("b.example", Validity::Now);
    let (says, _) = failures(&Pair::new(&a, &b, ours.trust("a.example"), ours.trust("b.example")));
    assert!(says.contains("our authority has not signed"), "{says}");
    let (_, says) =
        failures(&Pair::new(&a, &b, other.trust("a.example"), other.trust("b.example")));
    assert!(says.contains("our authority has not signed"), "{says}");
}

#[test]
fn a_certificate_for_one_role_only_says_what_it_lacks() {
    let authority = TestAuthority::new("ca");
    let with = |name: &str, purposes: &[_]| {
        let key = generate_key().unwrap();
        let certificate = authority.sign(&key, name, Validity::Now, purposes);
        load(&key, Some(&certificate)).unwrap()
    };
    let both = [ClientAuth, ServerAuth];
    let trust = |name| authority.trust(name);
    let pair = |a: &Identity, b: &Identity| Pair::new(a, b, trust("a.example"), trust("b.example"));
    let (a, b) = (with("a.example", &both), with("b.example", &both));
    let (dialled, called) = pair(&a, &b).shake();
    assert!(dialled.is_ok() && called.is_ok());
    let (_, says) = failures(&pair(&with("a.example", &[ServerAuth]), &b));
    assert!(says.contains("not for clients"), "{says}");
    let (says, _) = failures(&pair(&a, &with("b.example", &[ClientAuth])));
    assert!(says.contains("not for servers"), "{says}");
}

#[test]
fn keys_of_other_kinds_serve_as_well() {
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384] {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_pem();
        let a = load(&key, None).unwrap();
        let b = host();
        let (dialled, called) = Pair::new(&a, &b, pinned(&a), pinned(&b)).shake();
        assert!(dialled.is_ok() && called.is_ok());
    }
}

#[test]
fn the_first_message_names_nobody() {
    let authority = TestAuthority::new("ca");
    let a = authority.host("a.example", Validity::Now);
    let initiator = a.make_initiator(&peer("b"), &authority.trust("b.example")).unwrap();
    let mut machine = Machine::dial(&initiator, hello(1)).unwrap();
    let sent = machine.send();
    for name in [&b"example"[..], b"office"] {
        assert!(!sent.windows(name.len()).any(|w| w == name), "it is sent in clear");
    }
}
