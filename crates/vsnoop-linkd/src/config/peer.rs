//! The peers of a link.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::value::Address;
use vsnoop_link::identity::PublicKey;

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    pub name: String,
    pub trust: TrustConfig,
    /// `None`: it calls.
    pub address: Option<Address>,
    pub transport: Transport,
    /// Ordered transports: connections beside each other.
    pub connections: u8,
}

/// How a peer proves that it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustConfig {
    /// It has this key.
    Key(PublicKey),
    /// The CA has certified it under this name.
    Subject(String),
}

/// The transport of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    Udp,
    Tls,
    Tcp,
    /// Not encrypted.
    UdpPlain,
    /// Not encrypted.
    TcpPlain,
}

impl Transport {
    pub const ALL: [Self; 5] = [Self::Udp, Self::Tls, Self::Tcp, Self::UdpPlain, Self::TcpPlain];

    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
            Self::UdpPlain => "udp-plain",
            Self::TcpPlain => "tcp-plain",
        }
    }

    /// No host on the path can read or forge it.
    pub fn is_encrypted(self) -> bool {
        !matches!(self, Self::UdpPlain | Self::TcpPlain)
    }

    /// Frames of a flow arrive in order and complete, over several connections.
    pub fn is_ordered(self) -> bool {
        !matches!(self, Self::Udp | Self::UdpPlain)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
