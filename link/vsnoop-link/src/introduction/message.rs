//! Messages between a host and its hub about a peer behind the hub.
//!
//! ```text
//! ASK        1 | label: u16 | 1 | count: u8 | keys: 32 bytes each | keep: u16
//!            1 | label: u16 | 2 | length: u8 | subject | keep: u16
//! KNOWN      2 | label: u16 | standing: u8 | port: u16, IPv6 address: 16 bytes (if mutual)
//!              | kept: u16
//! TO_PEER    3 | label: u16 | exchange: u32 | sender: u8 | offset: u32 | received: u32 | bytes
//! FROM_PEER  4 | the same
//! ```
//! Numbers are in network order; an IPv4 address is mapped to IPv6. A message of another kind is
//! ignored; bytes behind ASK and KNOWN are, so that a later version may append fields. `keep` and
//! `kept` are in seconds; an older version has not got them, and remembers for 30 s.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::MOST_LABELS;
use crate::identity::PublicKey;
use crate::session::canonical_address;

const ASK: u8 = 1;
const KNOWN: u8 = 2;
const TO_PEER: u8 = 3;
const FROM_PEER: u8 = 4;
const KEYS: u8 = 1;
const SUBJECT: u8 = 2;
/// Keys of one peer: several while one replaces another.
const MOST_KEYS: usize = 8;
const PIECE_HEADER_BYTES: usize = 1 + 2 + 4 + 1 + 4 + 4;

pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// A hub remembers each question for this time at least, in seconds; one of an older version does
/// so for no longer.
pub const LEAST_KEPT_S: u16 = 30;
/// Bytes of a handshake in one message: with all headers it fits the MTU that IPv6 demands of every
/// path.
pub const PIECE_BYTES: usize = 1024;
/// The longest message.
pub const LARGEST_BYTES: usize = PIECE_HEADER_BYTES + PIECE_BYTES;

/// The number by which a host knows a peer behind its hub; from 1 to [`MOST_LABELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u16);

impl Label {
    /// `None`: out of bounds.
    pub fn new(number: u16) -> Option<Self> {
        (1..=MOST_LABELS).contains(&number).then_some(Self(number))
    }

    pub fn number(self) -> u16 {
        self.0
    }
}

/// Whom a host asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The peer that has one of these keys.
    Keys(Vec<PublicKey>),
    /// The peer whose certificate has this name.
    Subject(String),
}

/// The state of a peer as its hub answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does not relay for such a peer.
    Unknown,
    /// The peer is down.
    Down,
    /// The peer is up, and does not ask for the other.
    Silent,
    /// Both ask for each other. The hub has datagrams of the peer from this address.
    Mutual(SocketAddr),
}

/// A piece of what one end of a handshake says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub label: Label,
    /// Chosen by the initiator.
    pub exchange: u32,
    pub from_initiator: bool,
    /// Where its bytes stand in what the sender says.
    pub offset: u32,
    /// Bytes that the sender has received.
    pub received: u32,
    pub bytes: Vec<u8>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubMessage {
    /// To the hub: asks for a peer, and says how it is called here, and how long the hub is to
    /// remember that, in seconds; 0: it asks no more.
    Ask { label: Label, about: About, keep_s: u16 },
    /// The hub's answer; also when it changes. It will remember the question for `kept_s` seconds.
    Known { label: Label, standing: Standing, kept_s: u16 },
    /// To the hub, for the peer with this label.
    ToPeer(Piece),
    /// From the hub, of the peer with this label.
    FromPeer(Piece),
}

impl HubMessage {
    pub fn encode(&self) -> Vec<u8> {
        let begin = |kind: u8, label: Label| {
            let [high, low] = label.number().to_be_bytes();
            vec![kind, high, low]
        };
        match self {
            Self::Ask { label, about, keep_s } => {
                let mut out = begin(ASK, *label);
                match about {
                    About::Keys(keys) => {
                        let keys = &keys[..keys.len().min(MOST_KEYS)];
                        out.extend([KEYS, keys.len() as u8]);
                        keys.iter().for_each(|key| out.extend(key.as_bytes()));
                    }
                    About::Subject(subject) => {
                        let bytes = &subject.as_bytes()[..subject.len().min(u8::MAX.into())];
                        out.extend([SUBJECT, bytes.len() as u8]);
                        out.extend(bytes);
                    }
                }
                out.extend(keep_s.to_be_bytes());
                out
            }
            Self::Known { label, standing, kept_s } => {
                let mut out = begin(KNOWN, *label);
                match standing {
                    Standing::Unknown => out.push(0),
                    Standing::Down => out.push(1),
                    Standing::Silent => out.push(2),
                    Standing::Mutual(address) => {
                        let ip = match address.ip() {
                            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                            IpAddr::V6(ip) => ip,
                        };
                        out.push(3);
                        out.extend(address.port().to_be_bytes());
                        out.extend(ip.octets());
                    }
                }
                out.extend(kept_s.to_be_bytes());
                out
            }
            Self::ToPeer(piece) => piece.encode(begin(TO_PEER, piece.label)),
            Self::FromPeer(piece) => piece.encode(begin(FROM_PEER, piece.label)),
        }
    }

    /// `None`: of another kind, too short, or out of bounds.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, high, low], rest) = bytes.split_first_chunk()?;
        let label = Label::new(u16::from_be_bytes([high, low]))?;
        Some(match kind {
            ASK => {
                let (about, rest) = About::decode(rest)?;
                Self::Ask { label, about, keep_s: parse_seconds(rest) }
            }
            KNOWN => {
                let (standing, rest) = Standing::decode(rest)?;
                Self::Known { label, standing, kept_s: parse_seconds(rest) }
            }
            TO_PEER => Self::ToPeer(Piece::decode(label, rest)?),
            FROM_PEER => Self::FromPeer(Piece::decode(label, rest)?),
            _ => return None,
        })
    }
}

/// A time that an older version does not say.
fn parse_seconds(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(LEAST_KEPT_S, |field| u16::from_be_bytes(*field))
}

impl About {
    /// Returns the bytes behind it, too.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[kind, count], rest) = bytes.split_first_chunk()?;
        let count = usize::from(count);
        match kind {
            KEYS if (1..=MOST_KEYS).contains(&count) => {
                let (keys, rest) = rest.split_at_checked(count * size_of::<[u8; 32]>())?;
                let (keys, _) = keys.as_chunks();
                let keys = keys.iter().copied().map(PublicKey::of_bytes).collect();
                Some((Self::Keys(keys), rest))
            }
            SUBJECT if count > 0 => {
                let (subject, rest) = rest.split_at_checked(count)?;
                let subject = std::str::from_utf8(subject).ok()?;
                Some((Self::Subject(subject.to_owned()), rest))
            }
            _ => None,
        }
    }
}

impl Standing {
    /// Returns the bytes behind it, too.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (standing, rest) = bytes.split_first()?;
        Some(match standing {
            0 => (Self::Unknown, rest),
            1 => (Self::Down, rest),
            2 => (Self::Silent, rest),
            3 => {
                let (&port, rest) = rest.split_first_chunk()?;
                let (&ip, rest) = rest.split_first_chunk::<16>()?;
                let address = SocketAddr::new(Ipv6Addr::from(ip).into(), u16::from_be_bytes(port));
                (Self::Mutual(canonical_address(address)), rest)
            }
            _ => return None,
        })
    }
}

impl Piece {
    fn encode(&self, mut out: Vec<u8>) -> Vec<u8> {
        out.extend(self.exchange.to_be_bytes());
        out.push(self.from_initiator.into());
        out.extend(self.offset.to_be_bytes());
        out.extend(self.received.to_be_bytes());
        out.extend(&self.bytes);
        out
    }

    fn decode(label: Label, bytes: &[u8]) -> Option<Self> {
        let (&exchange, rest) = bytes.split_first_chunk()?;
        let (&sender, rest) = rest.split_first()?;
        let (&offset, rest) = rest.split_first_chunk()?;
        let (&received, bytes) = rest.split_first_chunk()?;
        (sender <= 1 && bytes.len() <= PIECE_BYTES).then(|| Self {
            label,
            exchange: u32::from_be_bytes(exchange),
            from_initiator: sender == 1,
            offset: u32::from_be_bytes(offset),
            received: u32::from_be_bytes(received),
            bytes: bytes.to_vec(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Older versions do not send it.
    const LATER_BYTES: usize = 2;

    fn addresses() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>())
            .prop_map(|(ip, port)| canonical_address(SocketAddr::new(ip, port)))
    }

    pub fn messages() -> impl Strategy<Value = HubMessage> {
        let label = || (1..=MOST_LABELS).prop_map(|number| Label::new(number).unwrap());
        let keys = proptest::collection::vec(any::<[u8; 32]>().prop_map(PublicKey::of_bytes), 1..9);
        let about =
            prop_oneof![keys.prop_map(About::Keys), "[a-z.]{1,255}".prop_map(About::Subject)];
        let standing = prop_oneof![
            Just(Standing::Unknown),
            Just(Standing::Down),
            Just(Standing::Silent),
            addresses().prop_map(Standing::Mutual)
        ];
        let bytes = proptest::collection::vec(any::<u8>(), 0..=PIECE_BYTES);
        let piece = (label(), any::<(u32, bool, u32, u32)>(), bytes).prop_map(
            |(label, (exchange, from_initiator, offset, received), bytes)| Piece {
                label,
                exchange,
                from_initiator,
                offset,
                received,
                bytes,
            },
        );
        prop_oneof![
            (label(), about, any::<u16>()).prop_map(|(label, about, keep_s)| HubMessage::Ask {
                label,
                about,
                keep_s
            }),
            (label(), standing, any::<u16>()).prop_map(|(label, standing, kept_s)| {
                HubMessage::Known { label, standing, kept_s }
            }),
            piece.clone().prop_map(HubMessage::ToPeer),
            piece.prop_map(HubMessage::FromPeer),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(message in messages()) {
            let bytes = message.encode();
            prop_assert!(bytes.len() <= LARGEST_BYTES);
            prop_assert_eq!(HubMessage::decode(&bytes), Some(message));
        }

        #[test]
        fn fields_of_a_later_version_are_passed_over(
            message in messages(),
            more in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            if matches!(message, HubMessage::Ask { .. } | HubMessage::Known { .. }) {
                let bytes = [message.encode(), more].concat();
                prop_assert_eq!(HubMessage::decode(&bytes), Some(message));
            }
        }

        #[test]
        fn an_older_version_remembers_for_30_s(message in messages()) {
            let bytes = message.encode();
            let older = match message {
                HubMessage::Ask { label, about, .. } => {
                    HubMessage::Ask { label, about, keep_s: 30 }
                }
                HubMessage::Known { label, standing, .. } => {
                    HubMessage::Known { label, standing, kept_s: 30 }
                }
                _ => return Ok(()),
            };
            let bytes = &bytes[..bytes.len() - LATER_BYTES];
            prop_assert_eq!(HubMessage::decode(bytes), Some(older));
        }

        #[test]
        fn a_cut_message_is_none(message in messages(), cut in any::<prop::sample::Index>()) {
            let bytes = message.encode();
            let head = if matches!(message, HubMessage::ToPeer(_) | HubMessage::FromPeer(_)) {
                PIECE_HEADER_BYTES
            } else {
                bytes.len() - LATER_BYTES
            };
            prop_assert_eq!(HubMessage::decode(&bytes[..cut.index(head)]), None);
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            HubMessage::decode(&bytes);
        }
    }
}
