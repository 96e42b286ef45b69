//! A cheap proof, before any key is computed with, that a caller knows the network.
//!
//! ```text
//! initiator                                 acceptor, with too many unknown sources
//!    | -- ClientHello of TLS ----------------> |   kept, not looked at
//!    | <---------------- Challenge { nonce } - |
//!    | -- Answer { HMAC(network, nonce) } ---> |   right: the ClientHello goes to TLS
//! ```
//!
//! The acceptor asks for it under load only, as for the cookies of DTLS (RFC 9147, section 5.1) and
//! of WireGuard. TCP has proved the caller's address already; the challenge proves that the caller
//! knows the name of the network, its key, which is told to authenticated peers only. A caller that
//! has guessed it gains a handshake, within a rate, as if there were no challenge. The nonce is new
//! for each call, so that an answer cannot be replayed.
//!
//! Both messages look like records of TLS of types that TLS does not have.

use aws_lc_rs::{hmac, rand};

const HEADER_BYTES: usize = 5;
const NONCE_BYTES: usize = 32;
/// Length of either message.
pub const CHALLENGE_BYTES: usize = HEADER_BYTES + NONCE_BYTES;
/// Types of records; those of TLS end at 26.
const CHALLENGE: u8 = 0xf0;
const ANSWER: u8 = 0xf1;
const LABEL: &[u8] = b"vsnoop link challenge 1\0";

/// The challenge of one caller.
#[derive(Debug)]
pub struct Challenge([u8; NONCE_BYTES]);

impl Challenge {
    /// `None` without random numbers.
    pub fn new() -> Option<Self> {
        let mut nonce = [0; NONCE_BYTES];
        rand::fill(&mut nonce).ok()?;
        Some(Self(nonce))
    }

    /// The bytes on the wire.
    pub fn message(&self) -> [u8; CHALLENGE_BYTES] {
        build_message(CHALLENGE, self.0)
    }

    /// Whether a message is the answer of one that knows `network`.
    pub fn is_answered_by(&self, network: &str, answer: &[u8; CHALLENGE_BYTES]) -> bool {
        let (header, tag) = answer.split_at(HEADER_BYTES);
        header == &build_message(ANSWER, [0; NONCE_BYTES])[..HEADER_BYTES]
            && hmac::verify(&derive_key(network), &self.0, tag).is_ok()
    }
}

/// Whether a first byte is that of a challenge, and not of TLS.
pub fn begins(first: u8) -> bool {
    first == CHALLENGE
}

/// Parses the answer to a challenge; `None`: not an answer.
pub fn answer_challenge(network: &str, challenge: &[u8]) -> Option<[u8; CHALLENGE_BYTES]> {
    let nonce = challenge.get(HEADER_BYTES..)?.try_into().ok()?;
    if challenge != build_message(CHALLENGE, nonce) {
        return None;
    }
    let tag = hmac::sign(&derive_key(network), &nonce);
    Some(build_message(ANSWER, tag.as_ref().try_into().ok()?))
}

fn derive_key(network: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &[LABEL, network.as_bytes()].concat())
}

fn build_message(kind: u8, body: [u8; NONCE_BYTES]) -> [u8; CHALLENGE_BYTES] {
    let mut message = [0; CHALLENGE_BYTES];
    message[..HEADER_BYTES].copy_from_slice(&[kind, 3, 3, 0, NONCE_BYTES as u8]);
    message[HEADER_BYTES..].copy_from_slice(&body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_network_answers_and_only_this_challenge() {
        let (one, other) = (Challenge::new().unwrap(), Challenge::new().unwrap());
        let answered = answer_challenge("office", &one.message()).unwrap();
        assert!(one.is_answered_by("office", &answered));
        assert!(!other.is_answered_by("office", &answered), "replayed");
        assert!(!one.is_answered_by("office2", &answered));
        assert!(!one.is_answered_by("office", &one.message()));
        let changed: [u8; CHALLENGE_BYTES] = std::array::from_fn(|at| answered[at] ^ 1);
        assert!(!one.is_answered_by("office", &changed));
    }

    #[test]
    fn what_is_no_challenge_has_no_answer() {
        let good = Challenge::new().unwrap().message();
        assert!(answer_challenge("office", &good).is_some());
        assert!(answer_challenge("office", &good[..36]).is_none());
        assert!(answer_challenge("office", &[&good[..], &[0]].concat()).is_none());
        for at in 0..HEADER_BYTES {
            let mut bad = good;
            bad[at] ^= 1;
            assert!(answer_challenge("office", &bad).is_none(), "byte {at}");
        }
    }
}
