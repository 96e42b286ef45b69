//! Who gets through, and what the others are told.

use std::io::{Read, Write};

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

use crate::handshake::testing::{Pair, deadline, hello, sockets};
use crate::handshake::*;
use crate::identity::testing::{Files, TestAuthority, Validity, peer, pinned};
use crate::identity::{Identity, keygen};

/// What both ends say of a handshake that has failed.
fn failures(pair: &Pair) -> (String, String) {
    let (a, b) = pair.shake();
    (a.unwrap_err().to_string(), b.unwrap_err().to_string())
}

/// Hosts a and b with certificates of one authority, as valid as wanted.
fn named(a: Validity, b: Validity) -> Pair {
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let a = authority.host(&files, "a.example", a);
    let b = authority.host(&files, "b.example", b);
    Pair::new(&a, &b, authority.trust("a.example"), authority.trust("b.example"))
}

#[test]
fn pinned_hosts_get_through_over_tcp() {
    let (a, b) = Pair::pinned().connect();
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
    assert_eq!((&a.peer, &b.peer), (&peer("b"), &peer("a")));
    assert_eq!((a.theirs.session, b.theirs.session), (0x5678, 0x1234));
    assert_eq!(a.agreed, b.agreed);
    assert_eq!(a.cipher, b.cipher);
    // The connection is theirs without a byte of the handshake in it.
    a.stream.write_all(b"one").unwrap();
    b.stream.write_all(b"two").unwrap();
    let mut got = [0; 3];
    b.stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"one");
    a.stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"two");
}

#[test]
fn the_connection_goes_on_with_tls_where_that_is_wanted() {
    let (a, b) = Pair::pinned().connect();
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
    a.tls.writer().write_all(b"sealed").unwrap();
    a.tls.complete_io(&mut a.stream).unwrap();
    b.tls.complete_io(&mut b.stream).unwrap();
    let mut got = [0; 6];
    b.tls.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"sealed");
}

#[test]
fn hosts_with_certificates_of_one_authority_get_through() {
    let (a, b) = named(Validity::Now, Validity::Now).shake();
    assert_eq!(a.unwrap().peer, peer("b"));
    assert_eq!(b.unwrap().peer, peer("a"));
}

#[test]
fn one_listener_knows_pinned_and_named_peers_apart() {
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let listener = authority.host(&files, "listener.example", Validity::Now);
    let by_key = [files.host("one"), files.host("two")];
    let by_name = ["three.example", "four.example"]
        .map(|name| (name, authority.host(&files, name, Validity::Now)));
    let mut peers = vec![(peer("one"), pinned(&by_key[0])), (peer("two"), pinned(&by_key[1]))];
    peers.extend(by_name.iter().map(|(name, _)| (peer(name), authority.trust(name))));
    let acceptor = listener.acceptor(&peers).unwrap();
    let callers = by_key.iter().chain(by_name.iter().map(|(_, host)| host));
    let ways_to_know_the_listener = [pinned(&listener), authority.trust("listener.example")];
    for (caller, (name, _)) in callers.zip(&peers) {
        for trust in &ways_to_know_the_listener {
            let pair = Pair {
                dialer: caller.dialer(&peer("listener"), trust).unwrap(),
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
    let files = Files::new();
    let (a, b, c) = (files.host("a"), files.host("b"), files.host("c"));
    let (a_says, b_says) = failures(&Pair::new(&a, &c, pinned(&a), pinned(&b)));
    assert!(a_says.starts_with("peer b: presented key"), "{a_says}");
    assert!(a_says.contains(&c.public().to_string()), "{a_says}");
    assert!(a_says.contains(&format!("not the pinned {}", b.public())), "{a_says}");
    assert!(b_says.contains("does not know our key"), "{b_says}");
    assert!(b_says.contains(&c.public().to_string()), "{b_says}");
}

#[test]
fn an_unknown_caller_is_refused_and_told_so_over_tcp() {
    let files = Files::new();
    let (a, b, c) = (files.host("a"), files.host("b"), files.host("c"));
    let (a_says, b_says) = Pair::new(&a, &b, pinned(&c), pinned(&b)).connect();
    let (a_says, b_says) = (a_says.unwrap_err().to_string(), b_says.unwrap_err().to_string());
    assert!(b_says.starts_with("a caller: presented key"), "{b_says}");
    assert!(b_says.contains("no peer's"), "{b_says}");
    assert!(b_says.contains(&a.public().to_string()), "{b_says}");
    assert!(a_says.starts_with("peer b: it does not know our key"), "{a_says}");
    assert!(a_says.contains(&a.public().to_string()), "{a_says}");
}

#[test]
fn a_listener_without_peers_refuses_everyone() {
    let files = Files::new();
    let (a, b) = (files.host("a"), files.host("b"));
    let mut pair = Pair::new(&a, &b, pinned(&a), pinned(&b));
    pair.acceptor = b.acceptor(&[]).unwrap();
    let (a, b) = pair.shake();
    assert!(a.is_err() && b.is_err());
}

#[test]
fn a_stolen_certificate_is_worth_nothing_without_its_key() {
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let a = authority.host(&files, "a.example", Validity::Now);
    let b = authority.host(&files, "b.example", Validity::Now);
    let thief = files.host("thief");
    for a_is in [pinned(&a), authority.trust("a.example")] {
        let pair = Pair {
            dialer: thief.dialer(&peer("b"), &pinned(&b)).unwrap().with_certificates_of(&a, &thief),
            acceptor: b.acceptor(&[(peer("a"), a_is)]).unwrap(),
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
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let a = authority.host(&files, "a.example", Validity::Now);
    let b = authority.host(&files, "b.example", Validity::Now);
    let (a_is, b_is) = (authority.trust("a.example"), authority.trust("b.example"));
    let other = authority.trust("c.example");
    let (says, _) = failures(&Pair::new(&a, &b, a_is, other.clone()));
    assert!(says.contains("certificate for b.example, not for c.example;"), "{says}");
    let (_, says) = failures(&Pair::new(&a, &b, other, b_is));
    assert!(says.contains("the name of no peer"), "{says}");
}

#[test]
fn a_certificate_of_another_authority_is_refused_in_both_roles() {
    let files = Files::new();
    let (ours, other) = (TestAuthority::new(&files, "ca"), TestAuthority::new(&files, "other"));
    let a = ours.host(&files, "a.example", Validity::Now);
    let b = other.host(&files, "b.example", Validity::Now);
    let (says, _) = failures(&Pair::new(&a, &b, ours.trust("a.example"), ours.trust("b.example")));
    assert!(says.contains("our authority has not signed"), "{says}");
    let (_, says) =
        failures(&Pair::new(&a, &b, other.trust("a.example"), other.trust("b.example")));
    assert!(says.contains("our authority has not signed"), "{says}");
}

#[test]
fn a_certificate_for_one_role_only_says_what_it_lacks() {
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let host = |name: &str, purposes: &[_]| {
        let key = files.path(&format!("{name}{}", purposes.len()));
        keygen(&key).unwrap();
        let certificate = authority.sign(&key, name, Validity::Now, purposes);
        Identity::load(&key, Some(&certificate)).unwrap()
    };
    let both = [ClientAuth, ServerAuth];
    let trust = |name| authority.trust(name);
    let pair = |a: &Identity, b: &Identity| Pair::new(a, b, trust("a.example"), trust("b.example"));
    let (a, b) = (host("a.example", &both), host("b.example", &both));
    let (dialled, called) = pair(&a, &b).shake();
    assert!(dialled.is_ok() && called.is_ok());
    let (_, says) = failures(&pair(&host("a.example", &[ServerAuth]), &b));
    assert!(says.contains("not for clients"), "{says}");
    let (says, _) = failures(&pair(&a, &host("b.example", &[ClientAuth])));
    assert!(says.contains("not for servers"), "{says}");
}

#[test]
fn keys_of_other_kinds_serve_as_well() {
    let files = Files::new();
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384] {
        let file = files.path("key");
        std::fs::write(&file, rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_pem())
            .unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, private).unwrap();
        let a = Identity::load(&file, None).unwrap();
        let b = files.host(&format!("b{}", fastrand::u64(..)));
        let (dialled, called) = Pair::new(&a, &b, pinned(&a), pinned(&b)).shake();
        assert!(dialled.is_ok() && called.is_ok());
    }
}

#[test]
fn the_first_message_names_nobody() {
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let a = authority.host(&files, "a.example", Validity::Now);
    let dialer = a.dialer(&peer("b"), &authority.trust("b.example")).unwrap();
    let mut machine = Machine::dial(&dialer, hello(1)).unwrap();
    let sent = machine.send();
    for name in [&b"example"[..], b"office"] {
        assert!(!sent.windows(name.len()).any(|w| w == name), "it is sent in clear");
    }
}

#[test]
fn another_tls_program_is_told_from_a_link() {
    let pair = Pair::pinned();
    let (ours, theirs) = sockets();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut theirs = theirs;
            let _ = theirs.write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
            let _ = theirs.read(&mut [0; 4096]);
        });
        let says = dial(ours, &pair.dialer, hello(1), deadline()).unwrap_err().to_string();
        assert!(says.contains("does not speak TLS"), "{says}");
    });
}
