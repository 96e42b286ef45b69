//! Configuration of a link, as its file says: plain structs, checked before the link is made.
//!
//! `file` reads the TOML and says what is wrong with its line and key, `value` knows the forms of
//! single values, `peer` is another host, `etcd` is where more of them are found, `rules` is the
//! list of compression rules, which may change while the link runs. Nothing here looks at the host:
//! whether a bridge exists, or a key is readable, is checked where it is used.

mod content_error;
mod etcd;
mod file;
mod peer;
mod rules;
#[cfg(test)]
mod tests;
mod value;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use toml::Value;
use vsnoop_config::Fault;
use vsnoop_link::forwarding::TableSettings;

pub use crate::threads::pairs::{PAIRS_MAX, Pairs};
pub use content_error::{ContentError, Same};
pub use etcd::EtcdConfig;
pub use peer::{
    AcceptConfig, BETWEEN_ADDRESSES, OuterConfig, PeerConfig, PeerSource, PeerTemplate, Transport,
    TrustConfig,
};
pub use rules::{Compress, FrameFields, RuleChange, RuleError, Rules, Selector, TooManyRules, Vm};
pub use value::{
    Address, LoopPolicy, PORT, ValueError, is_link_name, parse_dictionary, parse_name,
};
pub use vsnoop_config::Place;
pub use vsnoop_link::compress::Method;
pub use vsnoop_link::forwarding::{Mac, SourceFilter};

/// Where `vsnoop link up NAME` looks for NAME.toml.
pub const DIRECTORY: &str = "/etc/vsnoop/link";
/// MTU of the VMs' network: IPv6 needs the minimum, jumbo frames the maximum.
pub const MTU_BYTES: std::ops::RangeInclusive<u16> = 1280..=9216;
/// Public keys of one peer: the present one, and those that replace it.
pub const KEYS: usize = 8;
/// Addresses of one peer.
pub const ADDRESSES: usize = 8;
/// Connections beside each other on ordered transports.
pub const CONNECTIONS: std::ops::RangeInclusive<u8> = 1..=16;
/// Learned addresses of a link: the most take some 100 MB.
pub const ADDRESSES_LEARNED: std::ops::RangeInclusive<u32> = 1024..=1_000_000;
/// Addresses of a port.
pub const PORT_ADDRESSES: std::ops::RangeInclusive<u32> = 1..=1_000_000;

/// A link, as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where this was read.
    pub file: PathBuf,
    /// Tells links of this host apart; names the control socket.
    pub name: String,
    /// Both ends must name the same.
    pub network: String,
    /// UDP and TCP.
    pub listen: SocketAddr,
    /// The user that the link becomes once it has opened what needs root.
    pub user: Option<String>,
    /// File of the private key.
    pub key: PathBuf,
    /// A private CA beside pinned keys; peers with [`Trust::Subject`] need it.
    pub authority: Option<AuthorityConfig>,
    /// Pairs of data threads; `None`: [`Pairs::of_machine`] says how many, when the link starts.
    pub pairs: Option<Pairs>,
    /// MTU of the VMs' network: the largest Ethernet payload that their ports carry.
    pub mtu_bytes: u16,
    /// A learned address that was not heard of for this long is forgotten.
    pub age: Duration,
    /// Learned addresses at a time.
    pub addresses: usize,
    /// Frames that an address of a VM may send to all peers, per second; 0: any number.
    pub flood_rate: u32,
    pub loops: LoopPolicy,
    /// BPDUs pass, so that bridges of all hosts make one spanning tree.
    pub stp: bool,
    /// Lower the MSS in SYNs to what fits a datagram.
    pub clamp_mss: bool,
    /// Datagrams may leave together, with one system call (UDP GSO).
    pub gso: bool,
    /// A session is replaced by a new handshake after this long.
    pub rekey: Duration,
    /// A peer that answers nothing for this long is down.
    pub dead_after: Duration,
    pub ports: Vec<PortConfig>,
    pub peers: Vec<PeerConfig>,
    /// Where more peers are found.
    pub etcd: Option<EtcdConfig>,
    /// First match wins.
    pub compress: Rules,
    pub diverts: Vec<Divert>,
    /// Prefixes of VMs of this host: diverted packets from peers are let in to these, and to no
    /// others.
    pub local: Vec<IpNet>,
}

/// Files of a private CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityConfig {
    /// This host's own certificate chain, for its key; PEM.
    pub cert: PathBuf,
    /// Certificates of the CA; PEM.
    pub ca: PathBuf,
    /// Revocation lists of the CA; PEM.
    pub lists: Vec<PathBuf>,
}

/// A way between the link and local VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The interface: of a tap that the link makes, or one that exists.
    pub name: String,
    pub kind: PortKind,
    /// Source addresses that its VMs may use.
    pub sources: SourceFilter,
    /// How many; `None`: any number.
    pub quota: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A tap that the link makes and puts into this bridge.
    Bridge(String),
    /// A tap that the link creates and puts into no bridge.
    Tap,
    /// An interface that exists (a VM's tap, a physical LAN): a packet socket on it.
    Interface,
}

/// Traffic of a VM that goes through the link without an overlay network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divert {
    /// The VM's tap.
    pub interface: String,
    /// Where the file names it.
    pub place: Place,
    /// To these.
    pub prefixes: Vec<IpNet>,
    /// Name of the peer behind which they are.
    pub peer: String,
    pub when_down: WhenDown,
    /// Sources that the VM may use.
    pub sources: SourceFilter,
}

/// Handling of diverted traffic while the peer is not reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenDown {
    /// It goes its ordinary way.
    #[default]
    Pass,
    Drop,
}

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "{} is a directory, and the configuration of a link is one file: give its path, such as {}",
        file.display(),
        file.join("NAME.toml").display()
    )]
    IsDirectory { file: PathBuf },
    #[error(
        "there is no configuration {}; docs/guide/links/configuration.md says what to write there",
        file.display()
    )]
    NotFound { file: PathBuf },
    #[error("the configuration {} is no text in UTF-8", file.display())]
    NotUtf8 { file: PathBuf },
    #[error("the configuration {} cannot be read: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("{}, {place}: {error}", file.display())]
    Content { file: PathBuf, place: Place, error: ContentError },
}

impl ConfigError {
    fn at(file: &Path, place: Place, error: ContentError) -> Self {
        Self::Content { file: file.to_owned(), place, error }
    }
}

impl Config {
    /// The rules of the forwarding table.
    pub fn table_settings(&self) -> TableSettings {
        TableSettings {
            ageing_ns: self.age.as_nanos() as u64,
            entries: self.addresses,
            passes_bpdus: self.stp,
            floods_per_second: self.flood_rate.into(),
            ..TableSettings::default()
        }
    }

    /// Peers whose traffic anybody on the way can read.
    pub fn list_unencrypted(&self) -> impl Iterator<Item = &PeerConfig> {
        self.peers.iter().filter(|peer| !peer.transport.is_encrypted())
    }

    /// An error in `interface` of a `[[divert]]` on this host.
    pub fn wrong_interface(&self, divert: &Divert, why: &str) -> ConfigError {
        let found = Value::String(divert.interface.clone());
        let fault = Fault::value("divert.interface", &found, why);
        ConfigError::at(&self.file, divert.place, fault.into())
    }

    /// Checks that everything it names exists and is possible.
    pub fn check_rule(&self, rule: &Compress) -> Result<(), RuleError> {
        let selector = &rule.selector;
        let among = |kind, wanted: &Option<String>, names: Vec<&String>| match wanted {
            Some(wanted) if !names.contains(&wanted) => {
                let names: Vec<_> = names.into_iter().map(String::as_str).collect();
                let (link, wanted) = (self.name.clone(), wanted.clone());
                Err(RuleError::NoSuch { link, kind, wanted, names: names.join(", ") })
            }
            _ => Ok(()),
        };
        among("peer", &selector.peer, self.peers.iter().map(|peer| &peer.name).collect())?;
        among("port", &selector.port, self.port_names().collect())?;
        rule.check_dictionary(&self.peers)
    }

    /// Names that rules may call a port by: interfaces of ports, and taps with a diversion.
    pub fn port_names(&self) -> impl Iterator<Item = &String> {
        let ports = self.ports.iter().map(|port| &port.name);
        ports.chain(self.diverted_interfaces())
    }

    /// Each once, in the order of the file.
    pub fn diverted_interfaces(&self) -> impl Iterator<Item = &String> {
        let is_first = |(at, divert): &(usize, &Divert)| {
            self.diverts[..*at].iter().all(|before| before.interface != divert.interface)
        };
        let first = self.diverts.iter().enumerate().filter(is_first);
        first.map(|(_, divert)| &divert.interface)
    }
}
