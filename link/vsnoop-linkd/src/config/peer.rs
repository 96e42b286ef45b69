//! The peers of a link.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::value::Address;
use vsnoop_link::compress::{Codecs, CompressionLimits};
use vsnoop_link::identity::PublicKey;

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    pub name: String,
    pub trust: TrustConfig,
    /// The source of this peer: the file or etcd.
    pub source: PeerSource,
    /// None: it calls.
    pub addresses: Vec<Address>,
    pub transport: Transport,
    /// Ordered transports: connections beside each other.
    pub connections: u8,
    pub accept: AcceptConfig,
    pub outer: OuterConfig,
    /// Its frames go to other peers of which this is said, and theirs to it.
    pub relay: bool,
    /// The peer that relays for it and introduces it.
    pub via: Option<String>,
}

/// Where the name and the keys of a peer come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerSource {
    #[default]
    File,
    Etcd,
}

/// Settings of peers that the file does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTemplate {
    pub transport: Transport,
    pub connections: u8,
    pub accept: AcceptConfig,
    /// Without it rules decide, as for peers of the file.
    pub says_dictionary: bool,
    pub outer: OuterConfig,
    pub relay: bool,
    pub via: Option<String>,
}

impl PeerTemplate {
    /// A host of which etcd knows.
    pub fn make_peer(
        &self,
        name: &str,
        keys: Vec<PublicKey>,
        addresses: Vec<Address>,
    ) -> PeerConfig {
        let Self { transport, connections, accept, outer, relay, .. } = *self;
        PeerConfig {
            name: name.to_owned(),
            trust: TrustConfig::Keys(keys),
            source: PeerSource::Etcd,
            // A host behind a hub is called by way of it.
            addresses: if self.via.is_some() { Vec::new() } else { addresses },
            transport,
            connections,
            accept,
            outer,
            relay,
            via: self.via.clone(),
        }
    }
}

/// Marks (DSCP, ECN, flow label) that datagrams copy from the packets in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterConfig {
    /// Their DSCP.
    pub dscp: bool,
    /// Their ECN (RFC 6040), if the peer reads it.
    pub ecn: bool,
    /// The hash of their flow, in the flow label of IPv6.
    pub flow_label: bool,
}

impl Default for OuterConfig {
    fn default() -> Self {
        Self { dscp: true, ecn: true, flow_label: false }
    }
}

/// Limits on data that this host decompresses for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptConfig {
    pub codecs: Codecs,
    /// Largest window of a dictionary, bytes; `None`: no dictionaries.
    pub dictionary_bytes: Option<u32>,
}

/// Contexts of flows in one direction of a session, over all its connections. Each takes up to 1.5
/// MB.
const SESSION_FLOWS: u16 = 128;
/// Sessions of a peer whose decoders have all that they may have at the same time: the one in use,
/// and those that still retire.
const FULL_SESSIONS: u64 = 3;

/// Between addresses of a peer, in a text.
pub const BETWEEN_ADDRESSES: &str = ", ";

impl PeerConfig {
    /// Whether it may have a key of the other.
    pub fn shares_key(&self, other: &Self) -> bool {
        match (&self.trust, &other.trust) {
            (TrustConfig::Keys(keys), TrustConfig::Keys(others)) => {
                keys.iter().any(|key| others.contains(key))
            }
            _ => false,
        }
    }

    /// Its addresses as one text, or that it is called by way of its hub; `None`: it calls.
    pub fn called(&self) -> Option<String> {
        if let Some(hub) = &self.via {
            return Some(format!("by way of {hub}"));
        }
        let all: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| all.join(BETWEEN_ADDRESSES))
    }

    /// Limits of each of its connections.
    pub fn accepts(&self) -> CompressionLimits {
        let AcceptConfig { codecs, dictionary_bytes } = self.accept;
        // A rule's window is rounded up to a power of two by the sender.
        let dictionary_window_log =
            dictionary_bytes.map_or(0, |bytes| bytes.next_power_of_two().trailing_zeros() as u8);
        let flows = SESSION_FLOWS / u16::from(self.connections.max(1));
        let asked =
            CompressionLimits { codecs, flows, dictionary_window_log, ..CompressionLimits::MOST };
        CompressionLimits::MOST.limit_to(asked)
    }

    /// The most that decoders of the peer take, over all its connections and sessions, bytes.
    pub fn decoder_bytes_max(&self) -> u64 {
        if !self.transport.is_ordered() {
            return 0;
        }
        FULL_SESSIONS * u64::from(self.connections) * self.accepts().decoder_bytes_max()
    }
}

/// How a peer proves that it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustConfig {
    /// It has one of these keys: several while one replaces another.
    Keys(Vec<PublicKey>),
    /// The CA has certified it under this name.
    Subject(String),
}

/// The transport of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    Udp,
    Tls,
    /// Not encrypted.
    UdpPlain,
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Udp, Self::Tls, Self::UdpPlain];

    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tls => "tls",
            Self::UdpPlain => "udp-plain",
        }
    }

    /// No host on the path can read or forge it.
    pub fn is_encrypted(self) -> bool {
        self != Self::UdpPlain
    }

    /// Frames of a flow arrive in order and complete, over several connections.
    pub fn is_ordered(self) -> bool {
        self == Self::Tls
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
