//! Keys and certificates. What they are good for in a handshake is tested there.

use std::str::FromStr;

use proptest::prelude::*;

use super::test_authority::{TestAuthority, Validity};
use super::testing::{host, load, peer, pinned};
use super::*;

/// A key as `openssl genpkey -algorithm ed25519` writes it, and what the command in public_key.rs
/// says of it.
const OPENSSL_KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";
const OPENSSL_PUBLIC: &str = "oFCDfYUHBYLM9zlLCYiEfMMSy4glm4lImfbyOc8XkaU=";

#[test]
fn a_public_key_is_what_openssl_computes() {
    let key = public_key_of(Pem { bytes: OPENSSL_KEY.as_bytes(), file: "key" }).unwrap();
    assert_eq!(key.to_string(), OPENSSL_PUBLIC);
}

#[test]
fn a_public_key_survives_being_copied() {
    let key = host().public_key();
    let text = key.to_string();
    assert_eq!(text.len(), 44);
    for copied in [text.clone(), format!(" {text}\n"), text.trim_end_matches('=').to_owned()] {
        assert_eq!(PublicKey::from_str(&copied), Ok(key));
    }
}

#[test]
fn text_that_is_no_public_key_says_why() {
    let cases = [
        (OPENSSL_KEY, BadPublicKey::Pem),
        ("aGVsbG8=", BadPublicKey::Length(5)),
        ("", BadPublicKey::Length(0)),
        ("not a key", BadPublicKey::Character(' ')),
        ("ab\u{2028}cd", BadPublicKey::Character('\u{2028}')),
    ];
    for (text, why) in cases {
        assert_eq!(PublicKey::from_str(text), Err(why), "{text:?}");
    }
}

#[test]
fn a_certificate_for_another_key_is_refused() {
    let authority = TestAuthority::new("ca");
    let (a, b) = (generate_key().unwrap(), generate_key().unwrap());
    let certificate = authority.sign(&a, "a.example", Validity::Now, &[]);
    assert!(load(&a, Some(&certificate)).is_ok());
    let error = load(&b, Some(&certificate)).unwrap_err().to_string();
    assert!(error.contains("is for another key"), "{error}");
    let error = load(&a, Some(&a)).unwrap_err().to_string();
    assert!(error.contains("no certificate in PEM"), "{error}");
    assert!(Authority::new(Pem { bytes: a.as_bytes(), file: "ca" }, &[]).is_err());
}

#[test]
fn lists_that_would_cut_off_all_are_refused() {
    let (authority, other) = (TestAuthority::new("ca"), TestAuthority::new("other"));
    let namesake = TestAuthority::new("ca");
    let own = authority.host("a.example", Validity::Now);
    let checked = |list: &str| {
        let lists = [Pem { bytes: list.as_bytes(), file: "list" }];
        authority.trusted.with_lists(&lists).unwrap().check_lists(&own)
    };
    checked(&authority.list()).unwrap();
    let error = checked(&namesake.list()).unwrap_err();
    assert!(matches!(error, IdentityError::BadList { .. }), "{error:?}");
    let error = checked(&other.list()).unwrap_err();
    assert!(matches!(error, IdentityError::NoListOfOwn { .. }), "{error:?}");
    checked(&[authority.list(), other.list()].concat()).unwrap();
    authority.trusted.check_lists(&own).unwrap();
}

#[test]
fn a_proof_holds_until_the_first_certificate_of_the_path_expires() {
    let authority = TestAuthority::new("ca");
    let (own, named) = (host(), authority.host("b.example", Validity::Now));
    let until = |trusts: &[(PeerId, Trust)], shown: &Identity| {
        let acceptor = own.make_acceptor(trusts).unwrap();
        Proof::of_initiator(&acceptor, &shown.own.cert, true).until_s()
    };
    let by_name = (peer("b"), authority.trust("b.example"));
    let by_key = (peer("c"), pinned(&host()));
    assert_eq!(until(std::slice::from_ref(&by_name), &named), None, "longer than any session");
    let soon = authority.host("b.example", Validity::Until(4_000_000_000));
    for trusts in [vec![by_name.clone()], vec![by_key, by_name]] {
        assert_eq!(until(&trusts, &soon), Some(4_000_000_000));
    }
}

#[test]
fn peers_that_cannot_be_told_apart_are_refused() {
    let authority = TestAuthority::new("ca");
    let (a, b) = (host(), host());
    let own = a.make_initiator(&peer("b"), &pinned(&a)).unwrap_err().to_string();
    assert!(own.contains("that of this host itself"), "{own}");
    let twice = |trust: Trust| a.make_acceptor(&[(peer("b"), trust.clone()), (peer("c"), trust)]);
    for trust in [pinned(&b), authority.trust("b.example")] {
        let error = twice(trust).unwrap_err().to_string();
        assert!(error.contains("peers b and c"), "{error}");
    }
    assert!(Trust::named(&authority.trusted, "no name").is_err());
}

proptest! {
    #[test]
    fn any_text_is_a_public_key_or_says_why(text in "\\PC{0,60}|[A-Za-z0-9+/=]{40,48}") {
        match PublicKey::from_str(&text) {
            Ok(key) => prop_assert_eq!(PublicKey::from_str(&key.to_string()), Ok(key)),
            Err(e) => prop_assert!(e.to_string().contains("vsnoop link keygen")),
        }
    }
}
