//! Messages of two peers under a session: probe, answer, close.
//!
//! A message begins with its kind and the length of what follows up to the padding, so that a later
//! version may append fields: an older end reads those it knows. Numbers are in network order.
//! Counters are those of the session, counted in the direction towards the sender of the message.

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const PROBE: u8 = 1;
const ANSWER: u8 = 2;
const CLOSE: u8 = 3;

/// In a probe: its sender wants new keys, and the other end is the initiator.
const FLAG_REKEY: u16 = 1;

/// The longest message without padding, bytes.
pub const LARGEST_BYTES: usize = size_of::<AnswerLayout>();

/// The packets that have arrived under a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Authenticated packets.
    pub received_packets: u64,
    /// Bytes in them.
    pub received_bytes: u64,
    /// Packets that the other end must have sent, by the highest counter of each of its streams.
    pub expected_packets: u64,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks the other end for an answer.
    Probe {
        /// Chosen by the sender.
        id: u32,
        /// When the probe was sent, by the sender's clock.
        sent_ns: u64,
        /// The sender asks for new keys.
        wants_rekey: bool,
        /// Packets that the sender of the probe has received.
        counters: Counters,
    },
    /// Answers a probe.
    Answer {
        /// The id of the probe.
        id: u32,
        /// `sent_ns` of the probe.
        sent_ns: u64,
        /// Time from the probe's arrival to this answer.
        held_ns: u64,
        /// When the answer was sent, by the clock of the end that answers.
        answered_ns: u64,
        /// Size of the probe as it arrived, with its padding.
        size_bytes: u16,
        /// Packets that the sender of the answer has received.
        counters: Counters,
    },
    /// Ends the session.
    Close(CloseReason),
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The link was taken down.
    Down,
    /// Packets stopped arriving.
    Silence,
    /// Its keys, or what the peer has shown of itself, have come to their end.
    Expired,
    /// A reason of a later version.
    Other(u8),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct CountersLayout {
    received_packets: U64,
    received_bytes: U64,
    expected_packets: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct ProbeLayout {
    kind: u8,
    length: u8,
    flags: U16,
    id: U32,
    sent_ns: U64,
    counters: CountersLayout,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AnswerLayout {
    kind: u8,
    length: u8,
    size_bytes: U16,
    id: U32,
    sent_ns: U64,
    held_ns: U64,
    answered_ns: U64,
    counters: CountersLayout,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct CloseLayout {
    kind: u8,
    length: u8,
    reason: u8,
    reserved: u8,
}

impl Message {
    /// Writes the message to the beginning of `out`; what follows is padding. `None`: no room.
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        fn put_layout<L: IntoBytes + Immutable>(layout: &L, out: &mut [u8]) -> Option<usize> {
            layout.write_to_prefix(out).ok()?;
            Some(size_of::<L>())
        }
        match *self {
            Self::Probe { id, sent_ns, wants_rekey, counters } => put_layout(
                &ProbeLayout {
                    kind: PROBE,
                    length: size_of::<ProbeLayout>() as u8,
                    flags: U16::new(if wants_rekey { FLAG_REKEY } else { 0 }),
                    id: U32::new(id),
                    sent_ns: U64::new(sent_ns),
                    counters: counters.into(),
                },
                out,
            ),
            Self::Answer { id, sent_ns, held_ns, answered_ns, size_bytes, counters } => put_layout(
                &AnswerLayout {
                    kind: ANSWER,
                    length: size_of::<AnswerLayout>() as u8,
                    size_bytes: U16::new(size_bytes),
                    id: U32::new(id),
                    sent_ns: U64::new(sent_ns),
                    held_ns: U64::new(held_ns),
                    answered_ns: U64::new(answered_ns),
                    counters: counters.into(),
                },
                out,
            ),
            Self::Close(reason) => put_layout(
                &CloseLayout {
                    kind: CLOSE,
                    length: size_of::<CloseLayout>() as u8,
                    reason: reason.into(),
                    reserved: 0,
                },
                out,
            ),
        }
    }

    /// Reads a message. `None`: of a kind that is not known, or too short.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (&kind, &length) = (bytes.first()?, bytes.get(1)?);
        let body = bytes.get(..usize::from(length))?;
        match kind {
            PROBE => {
                let (probe, _) = ProbeLayout::read_from_prefix(body).ok()?;
                Some(Self::Probe {
                    id: probe.id.get(),
                    sent_ns: probe.sent_ns.get(),
                    wants_rekey: probe.flags.get() & FLAG_REKEY != 0,
                    counters: probe.counters.into(),
                })
            }
            ANSWER => {
                let (answer, _) = AnswerLayout::read_from_prefix(body).ok()?;
                Some(Self::Answer {
                    id: answer.id.get(),
                    sent_ns: answer.sent_ns.get(),
                    held_ns: answer.held_ns.get(),
                    answered_ns: answer.answered_ns.get(),
                    size_bytes: answer.size_bytes.get(),
                    counters: answer.counters.into(),
                })
            }
            CLOSE => {
                let (close, _) = CloseLayout::read_from_prefix(body).ok()?;
                Some(Self::Close(close.reason.into()))
            }
            _ => None,
        }
    }
}

impl From<Counters> for CountersLayout {
    fn from(counters: Counters) -> Self {
        Self {
            received_packets: U64::new(counters.received_packets),
            received_bytes: U64::new(counters.received_bytes),
            expected_packets: U64::new(counters.expected_packets),
        }
    }
}

impl From<CountersLayout> for Counters {
    fn from(layout: CountersLayout) -> Self {
        Self {
            received_packets: layout.received_packets.get(),
            received_bytes: layout.received_bytes.get(),
            expected_packets: layout.expected_packets.get(),
        }
    }
}

impl From<CloseReason> for u8 {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::Down => 1,
            CloseReason::Silence => 2,
            CloseReason::Expired => 3,
            CloseReason::Other(code) => code,
        }
    }
}

impl From<u8> for CloseReason {
    fn from(code: u8) -> Self {
        match code {
            1 => Self::Down,
            2 => Self::Silence,
            3 => Self::Expired,
            code => Self::Other(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> impl Strategy<Value = Message> {
        let counters = || {
            any::<(u64, u64, u64)>().prop_map(|(packets, bytes, expected)| Counters {
                received_packets: packets,
                received_bytes: bytes,
                expected_packets: expected,
            })
        };
        prop_oneof![
            (any::<(u32, u64, bool)>(), counters()).prop_map(
                |((id, sent_ns, wants_rekey), counters)| Message::Probe {
                    id,
                    sent_ns,
                    wants_rekey,
                    counters
                }
            ),
            (any::<(u32, u64, u64, u64, u16)>(), counters()).prop_map(
                |((id, sent_ns, held_ns, answered_ns, size_bytes), counters)| Message::Answer {
                    id,
                    sent_ns,
                    held_ns,
                    answered_ns,
                    size_bytes,
                    counters
                }
            ),
            any::<u8>().prop_map(|code| Message::Close(code.into())),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_padding_is_ignored(
            message in messages(),
            pad in 0..200usize,
        ) {
            let mut bytes = [0xa5; LARGEST_BYTES + 200];
            let len = message.write(&mut bytes).unwrap();
            prop_assert_eq!(Message::read(&bytes[..len + pad]), Some(message));
        }

        #[test]
        fn a_cut_message_is_none(message in messages(), cut in 0..LARGEST_BYTES) {
            let mut bytes = [0; LARGEST_BYTES];
            let len = message.write(&mut bytes).unwrap();
            prop_assert_eq!(Message::read(&bytes[..cut.min(len - 1)]), None);
            prop_assert_eq!(message.write(&mut bytes[..cut.min(len - 1)]), None);
        }

        #[test]
        fn fields_of_a_later_version_are_passed_over(message in messages(), more in 1..100u8) {
            let mut bytes = [0xff; 2 * LARGEST_BYTES + 100];
            let len = message.write(&mut bytes).unwrap();
            bytes[1] = len as u8 + more;
            prop_assert_eq!(Message::read(&bytes), Some(message));
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Message::read(&bytes);
        }
    }
}
