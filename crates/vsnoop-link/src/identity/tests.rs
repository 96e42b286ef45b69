//! Keys and files. What they are good for in a handshake is tested there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::str::FromStr;

use proptest::prelude::*;

use super::testing::{Files, TestAuthority, Validity, peer, pinned};
use super::*;

/// A key as `openssl genpkey -algorithm ed25519` writes it, and what the command in public_key.rs
/// says of it.
const OPENSSL_KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";
const OPENSSL_PUBLIC: &str = "oFCDfYUHBYLM9zlLCYiEfMMSy4glm4lImfbyOc8XkaU=";

fn write_key(files: &Files, text: &str, mode: u32) -> std::path::PathBuf {
    let file = files.path("key");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    file
}

#[test]
fn a_new_key_is_its_owners_alone() {
    let files = Files::new();
    let file = files.path("key");
    let made = keygen(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(public(&file).unwrap(), made);
    assert_eq!(Identity::load(&file, None).unwrap().public(), made);
    assert_ne!(keygen(&files.path("other")).unwrap(), made);
}

#[test]
fn a_key_file_is_never_overwritten() {
    let files = Files::new();
    let file = files.path("key");
    keygen(&file).unwrap();
    let before = fs::read(&file).unwrap();
    let error = keygen(&file).unwrap_err().to_string();
    assert!(error.contains("exists and is not overwritten"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
    let left = fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "an unfinished file is left");
}

#[test]
fn a_directory_that_is_missing_is_said_how_to_make() {
    let files = Files::new();
    let file = files.path("not/there/key");
    let mkdir = format!("`mkdir -p {}`", file.parent().unwrap().display());
    for error in [keygen(&file), public(&file)].map(|result| result.unwrap_err().to_string()) {
        assert!(error.contains(&mkdir), "{error}");
    }
    let error = public(&files.path("key")).unwrap_err().to_string();
    assert!(error.contains("vsnoop link keygen") && !error.contains("mkdir"), "{error}");
}

#[test]
fn a_key_that_others_could_read_is_refused() {
    let files = Files::new();
    for mode in [0o640, 0o604, 0o620, 0o677] {
        let error = public(&write_key(&files, OPENSSL_KEY, mode)).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
    assert!(public(&write_key(&files, OPENSSL_KEY, 0o400)).is_ok());
}

#[test]
fn a_key_file_that_is_none_says_what_to_do() {
    let files = Files::new();
    let missing = public(&files.path("none")).unwrap_err().to_string();
    assert!(missing.contains("vsnoop link keygen"), "{missing}");
    let directory = public(files.path("x").parent().unwrap()).unwrap_err().to_string();
    assert!(directory.contains("not a file"), "{directory}");
    for text in ["", "hello", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        assert!(public(&write_key(&files, text, 0o600)).is_err());
    }
}

#[test]
fn a_public_key_is_what_openssl_computes() {
    let files = Files::new();
    let key = public(&write_key(&files, OPENSSL_KEY, 0o600)).unwrap();
    assert_eq!(key.to_string(), OPENSSL_PUBLIC);
}

#[test]
fn a_public_key_survives_being_copied() {
    let files = Files::new();
    let key = keygen(&files.path("key")).unwrap();
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
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let (a, b) = (files.path("a"), files.path("b"));
    keygen(&a).unwrap();
    keygen(&b).unwrap();
    let certificate = authority.sign(&a, "a.example", Validity::Now, &[]);
    assert!(Identity::load(&a, Some(&certificate)).is_ok());
    let error = Identity::load(&b, Some(&certificate)).unwrap_err().to_string();
    assert!(error.contains("is for another key"), "{error}");
    let error = Identity::load(&a, Some(&files.path("none"))).unwrap_err();
    assert!(format!("{error:#}").contains("cannot read the certificate file"), "{error:#}");
    let error = Identity::load(&a, Some(&a)).unwrap_err().to_string();
    assert!(error.contains("no certificate in PEM"), "{error}");
    assert!(Authority::load(&a).is_err());
}

#[test]
fn peers_that_cannot_be_told_apart_are_refused() {
    let files = Files::new();
    let authority = TestAuthority::new(&files, "ca");
    let (a, b) = (files.host("a"), files.host("b"));
    let own = a.dialer(&peer("b"), &pinned(&a)).unwrap_err().to_string();
    assert!(own.contains("that of this host itself"), "{own}");
    let twice = |trust: Trust| a.acceptor(&[(peer("b"), trust.clone()), (peer("c"), trust)]);
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
