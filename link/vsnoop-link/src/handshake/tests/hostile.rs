//! Connections that are cut, garbled, silent, or far too many.

use std::sync::LazyLock;

use proptest::prelude::*;

use crate::handshake::testing::{Pair, Party, hello};
use crate::handshake::*;

/// Which end's bytes are interfered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Initiator,
    Acceptor,
}

/// The handshake in memory with `interfere` between the ends: it is given one end's bytes, and
/// where in the stream they begin. Which of both ends are done afterwards.
fn shake_with(pair: &Pair, end: End, mut interfere: impl FnMut(usize, &mut Vec<u8>)) -> [bool; 2] {
    let (a, b) = pair.machines();
    let (mut a, mut b) = (Party::new(a), Party::new(b));
    let mut seen = 0;
    loop {
        let mut moved = false;
        for sender in [End::Initiator, End::Acceptor] {
            let (from, to) =
                if sender == End::Initiator { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let waiting = to.inbox.len();
            moved |= from.exchange(to, &pair.answer);
            if sender == end {
                let mut new = to.inbox.split_off(waiting);
                let begin = seen;
                seen += new.len();
                interfere(begin, &mut new);
                to.inbox.append(&mut new);
            }
        }
        if !moved {
            return [a.is_done(), b.is_done()];
        }
    }
}

/// Bytes that each end sends in a handshake.
fn lengths(pair: &Pair) -> [usize; 2] {
    [End::Initiator, End::Acceptor].map(|end| {
        let mut sent = 0;
        assert_eq!(shake_with(pair, end, |_, bytes| sent += bytes.len()), [true, true]);
        sent
    })
}

#[test]
fn a_connection_cut_at_any_byte_ends_the_handshake_of_whoever_still_waits() {
    let pair = Pair::pinned();
    // Signatures may differ in length from one handshake to the next, of Ed25519 they do not.
    let lengths = lengths(&pair);
    for (end, len) in [End::Initiator, End::Acceptor].into_iter().zip(lengths) {
        for cut in 0..len {
            let done = shake_with(&pair, end, |begin, bytes| {
                bytes.truncate(cut.saturating_sub(begin));
            });
            match end {
                End::Initiator => assert_eq!(done, [false, false], "cut at {cut} of {len}"),
                // The acceptor has said its last word, and cannot know that it is lost.
                End::Acceptor => assert!(!done[0], "cut at {cut} of {len}"),
            }
        }
    }
}

/// Where one end sends what is of no meaning and not covered: the type and the version that a
/// record has outside (its true type is sealed; RFC 8446, section 5), and a change of cipher
/// (appendix D.4).
fn ignored(pair: &Pair, end: End) -> Vec<usize> {
    const CHANGE_OF_CIPHER: u8 = 20;
    let mut all = Vec::new();
    shake_with(pair, end, |_, bytes| all.extend_from_slice(bytes));
    let mut ignored = Vec::new();
    let mut at = 0;
    while let [kind, _, _, high, low, ..] = all[at..] {
        ignored.extend([at, at + 1, at + 2]);
        if kind == CHANGE_OF_CIPHER {
            ignored.push(at + 5);
        }
        at += 5 + usize::from(u16::from_be_bytes([high, low]));
    }
    ignored
}

#[test]
fn a_flipped_bit_keeps_the_two_ends_from_being_done() {
    let pair = Pair::pinned();
    for (end, len) in [End::Initiator, End::Acceptor].into_iter().zip(lengths(&pair)) {
        let ignored = ignored(&pair, end);
        for position in (0..len).filter(|at| !ignored.contains(at)) {
            let mask = 1 << (position % 8);
            let done = shake_with(&pair, end, |begin, bytes| {
                if let Some(byte) = position.checked_sub(begin).and_then(|i| bytes.get_mut(i)) {
                    *byte ^= mask;
                }
            });
            assert_ne!(done, [true, true], "{end:?} byte {position} of {len}");
        }
    }
}

/// An authenticated peer that sends `message` instead of its hello.
fn says_instead(message: &[u8]) -> (Error, Option<Error>) {
    let pair = Pair::pinned();
    let (mut a, b) = pair.machines();
    a.say_instead(message.to_vec());
    let (mut a, mut b) = (Party::new(a), Party::new(b));
    while a.exchange(&mut b, &pair.answer) | b.exchange(&mut a, &pair.answer) {}
    let at_a = if a.is_done() { None } else { a.error };
    (b.error.expect("the acceptor has taken it"), at_a)
}

#[test]
fn garbage_instead_of_a_hello_is_refused() {
    for message in [&b"\x00\x05hello"[..], b"\x00\x02{}", b"\x00\x04null", b"\x00\x03\xff\xff\xff"]
    {
        let (at_b, at_a) = says_instead(message);
        assert!(matches!(at_b, Error::Refused { .. }), "{at_b}");
        assert!(matches!(at_a, Some(Error::RefusedBy { .. })));
    }
}

#[test]
fn an_empty_or_oversize_hello_is_refused_by_its_length() {
    for length in [0u16, MOST_BYTES as u16 + 1, u16::MAX] {
        let (at_b, _) = says_instead(&length.to_be_bytes());
        assert!(matches!(at_b, Error::Peer { .. }), "{at_b}");
    }
}

#[test]
fn a_hello_of_deep_nesting_does_not_exhaust_the_stack() {
    let nested = [vec![b'['; 2000], vec![b']'; 2000]].concat();
    assert!(Hello::decode(&nested).is_err());
    assert!(Reply::decode(&nested).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = Hello::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }

    #[test]
    fn a_damaged_message_is_a_message_or_an_error(at in 0usize..400, byte: u8) {
        let mut bytes = hello(1).encode().unwrap().split_off(2);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(hello) = Hello::decode(&bytes) {
            prop_assert!(hello.encode().is_ok());
        }
    }

    #[test]
    fn any_bytes_instead_of_tls_end_the_handshake_or_are_waited_for(
        bytes in proptest::collection::vec(any::<u8>(), 1..600),
        piece in 1usize..100,
    ) {
        static PAIR: LazyLock<Pair> = LazyLock::new(Pair::pinned);
        let (a, b) = PAIR.machines();
        for mut machine in [a, b] {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let Step::Read(most) = machine.step() else { break };
                prop_assert!(most > 0);
                let n = most.min(piece).min(rest.len());
                if machine.receive(&rest[..n]).is_err() {
                    break;
                }
                rest = &rest[n..];
            }
            prop_assert!(machine.finish().is_none());
        }
    }
}
