//! The messages of a link's handshake, as an authenticated but hostile peer would send them: what
//! is decoded keeps to the bounds, and means the same after it has been encoded again.
//!
//!     cargo +nightly fuzz run link_hello
#![no_main]

use vsnoop_link::handshake::{BadHello, Hello, MOST_BYTES, Reply, Versions};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(hello) = Hello::decode(input) {
        assert!(hello.versions.highest_common(Versions::OURS).is_some());
        assert!(!hello.software.chars().any(char::is_control));
        match hello.encode() {
            Ok(bytes) => assert_eq!(Hello::decode(&bytes[2..]).as_ref(), Ok(&hello)),
            // Encoded by us a message may be longer: escapes, and defaults for what was left out.
            Err(e) => assert!(matches!(e, BadHello::Size(n) if n > MOST_BYTES)),
        }
    }
    match Reply::decode(input) {
        Ok(Reply::Refused(refusal)) => {
            assert!(refusal.reason.chars().count() <= 300);
            assert!(!refusal.reason.chars().any(char::is_control));
        }
        Ok(Reply::Accepted { .. }) | Err(_) => (),
    }
});
