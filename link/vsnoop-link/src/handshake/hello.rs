//! The messages that follow TLS's own: JSON behind its length.
//!
//! JSON, because these few hundred bytes are exchanged once a session and have to be understood by
//! versions older and newer than this one: fields that are not known are ignored, new fields get a
//! default. Whether there is a common version is looked at before everything else.
//!
//! A message comes from an authenticated peer, which may still be hostile: every
//! text and list is bounded, and what people will read has no control characters.

use std::fmt;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Direction;
use crate::compress::CompressionLimits;

/// A message is at most this long, without its length.
pub const MOST_BYTES: usize = 4096;
/// Bytes of the length before a message, big endian.
pub(super) const LENGTH_BYTES: usize = 2;
/// Characters of a name.
const MOST_NAME: usize = 64;
/// Characters of a reason.
const MOST_REASON: usize = 300;
/// Prefixes in a list: their text is the largest part of a message.
pub const MOST_TAKES: usize = 32;

/// An end's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Versions of the link's protocol that it speaks.
    pub versions: Versions,
    /// Purpose of the connection. The acceptor repeats the initiator's.
    pub purpose: Purpose,
    /// The network that the link is a part of: both ends must name the same.
    pub network: String,
    /// Random, made once per process: another number means that the peer was started again.
    pub instance: u64,
    /// Chosen by this end, at random: the other end writes it into the records that it sends here.
    pub session: u32,
    /// The least number that the keys of this session may be counted by.
    #[serde(default)]
    pub epoch: u16,
    /// Transport of data.
    pub transport: HelloTransport,
    /// Data connections in each direction that it would have at most, for ordered transports.
    #[serde(default = "one")]
    pub connections: u8,
    /// MTU of the network of its VMs, in bytes.
    pub mtu_bytes: u16,
    /// Diverted packets to these prefixes are let in there, and to no others.
    #[serde(default)]
    pub takes: Vec<IpNet>,
    /// Its limits of decompression: the other end uses no other codec.
    #[serde(default)]
    pub accepts: CompressionLimits,
    /// It brings what routers write into the ECN of datagrams into the packets in them; without
    /// that the other end sends none (RFC 6040, section 4.3).
    #[serde(default)]
    pub ecn: bool,
    /// Its program and version, for messages to people.
    #[serde(default)]
    pub software: String,
}

fn one() -> u8 {
    1
}

/// Versions of a protocol, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub min: u16,
    pub max: u16,
}

impl Versions {
    /// Versions that this program speaks.
    pub const OURS: Self = Self { min: 2, max: 2 };

    /// The newest common version.
    pub fn highest_common(self, other: Self) -> Option<u16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.min)
        } else {
            write!(f, "{} to {}", self.min, self.max)
        }
    }
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Makes a session, then is closed.
    Control,
    /// Carries data of a session that exists.
    Data {
        /// The number that the acceptor chose for the session.
        session: u32,
        /// Index among the session's data connections of this direction.
        index: u8,
        /// Direction of its data.
        direction: Direction,
    },
}

/// Transport of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HelloTransport {
    /// Sealed records in datagrams.
    Udp,
    /// TLS connections.
    Tls,
    /// Datagrams in clear.
    UdpPlain,
    /// A transport that this version does not know, or not any more (`tcp`, `tcp-plain`).
    #[serde(other)]
    Unknown,
}

impl fmt::Display for HelloTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::Tls => "tls",
            Self::UdpPlain => "udp-plain",
            Self::Unknown => "a transport of another version",
        })
    }
}

/// Parameters that both ends of a session agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    /// The version of the protocol.
    pub version: u16,
    /// Epoch of its keys.
    #[serde(default)]
    pub epoch: u16,
    pub transport: HelloTransport,
    /// Data connections in each direction.
    #[serde(default)]
    pub connections: u8,
}

/// The acceptor's answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    Accepted {
        /// The acceptor's own.
        hello: Hello,
        agreed: Agreed,
    },
    Refused(Refusal),
}

/// Why an authenticated peer is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    /// The reason, for people at both ends.
    pub reason: String,
}

impl Refusal {
    /// A refusal for this reason.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: make_readable(&reason.into(), MOST_REASON) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Kind of a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// No version in common.
    Version,
    /// Another network.
    Network,
    /// Another transport.
    Transport,
    /// It has called itself.
    Itself,
    /// No such session: make a new one.
    Session,
    /// Not now: try again later.
    Busy,
    /// Another kind.
    #[serde(other)]
    Other,
}

/// Why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHello {
    #[error("a message of {0} bytes, of at most {MOST_BYTES}")]
    Size(usize),
    /// In the words of the JSON parser.
    #[error("a message that is not understood: {0}")]
    Json(String),
    #[error("a message that is not understood: it is empty")]
    Empty,
    #[error("a message that is not understood: the network's name is too long")]
    NetworkName,
    #[error("a message that is not understood: too many prefixes")]
    Prefixes,
    #[error("a message that is not understood: no connections")]
    NoConnections,
    /// It is of versions that this program does not speak.
    #[error(
        "protocol version {0} there, {ours} here; run the newer vsnoop on both hosts",
        ours = Versions::OURS
    )]
    Versions(Versions),
}

impl Hello {
    /// Decodes the bytes after the length.
    pub fn decode(message: &[u8]) -> Result<Self, BadHello> {
        #[derive(Deserialize)]
        struct First {
            versions: Versions,
        }
        let First { versions } = parse_message(message)?;
        if versions.highest_common(Versions::OURS).is_none() {
            return Err(BadHello::Versions(versions));
        }
        parse_message::<Self>(message).and_then(Self::check_bounds)
    }

    /// Encodes it, with the length in front.
    pub fn encode(&self) -> Result<Vec<u8>, BadHello> {
        frame_message(&self.clone().check_bounds()?)
    }

    fn check_bounds(mut self) -> Result<Self, BadHello> {
        if self.network.chars().count() > MOST_NAME {
            return Err(BadHello::NetworkName);
        }
        if self.takes.len() > MOST_TAKES {
            return Err(BadHello::Prefixes);
        }
        if self.connections == 0 {
            return Err(BadHello::NoConnections);
        }
        self.network = make_readable(&self.network, MOST_NAME);
        self.software = make_readable(&self.software, MOST_NAME);
        Ok(self)
    }
}

impl Reply {
    /// Decodes the bytes after the length.
    pub fn decode(message: &[u8]) -> Result<Self, BadHello> {
        Ok(match parse_message(message)? {
            Self::Accepted { hello, agreed } => {
                Self::Accepted { hello: hello.check_bounds()?, agreed }
            }
            Self::Refused(Refusal { kind, reason }) => Self::Refused(Refusal::new(kind, reason)),
        })
    }

    /// Encodes it, with the length in front.
    pub fn encode(&self) -> Result<Vec<u8>, BadHello> {
        frame_message(self)
    }
}

fn parse_message<T: DeserializeOwned>(message: &[u8]) -> Result<T, BadHello> {
    if message.len() > MOST_BYTES {
        return Err(BadHello::Size(message.len()));
    }
    // An error may quote the invalid text.
    serde_json::from_slice(message).map_err(|e| BadHello::Json(make_readable(&e.to_string(), 100)))
}

fn frame_message(message: &impl Serialize) -> Result<Vec<u8>, BadHello> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message).map_err(|e| BadHello::Json(e.to_string()))?;
    let len = bytes.len() - LENGTH_BYTES;
    match u16::try_from(len) {
        Ok(n) if len <= MOST_BYTES => bytes[..LENGTH_BYTES].copy_from_slice(&n.to_be_bytes()),
        _ => return Err(BadHello::Size(len)),
    }
    Ok(bytes)
}

/// The text without what could trick a terminal, and no longer than `most` characters.
fn make_readable(text: &str, most: usize) -> String {
    // Controls, and those that turn the direction of writing or cannot be seen.
    let unseen = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().take(most).map(|c| if unseen(c) { '?' } else { c }).collect()
}
