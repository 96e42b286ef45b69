//! Where hosts announce themselves: `[etcd]`.

use std::path::PathBuf;
use std::time::Duration;

use vsnoop_etcd::Endpoint;

use super::peer::PeerTemplate;
use super::value::Address;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The nodes of one cluster.
    pub endpoints: Vec<Endpoint>,
    /// File of the certificates by which the nodes are known; PEM.
    pub ca: Option<PathBuf>,
    /// Files of this host's certificate and private key there; PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// User, and file of the password.
    pub login: Option<(String, PathBuf)>,
    /// Prefix of all keys; the network and the name of a host follow.
    pub prefix: String,
    /// The name of this host; `None`: the host's own.
    pub name: Option<String>,
    /// Addresses that other hosts call; empty: the address by which this host reaches etcd.
    pub addresses: Vec<Address>,
    /// Time to live of the host's lease: etcd deletes the entry this long after the last renewal.
    pub ttl: Duration,
    /// A peer whose entry is gone stays for this time while its session lives.
    pub grace: Duration,
    pub template: PeerTemplate,
}
