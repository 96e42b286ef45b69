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
    /// What all keys begin with; the network and the name of a host follow.
    pub prefix: String,
    /// The name of this host; `None`: the host's own.
    pub name: Option<String>,
    /// What other hosts call; none: the address by which this host reaches etcd.
    pub addresses: Vec<Address>,
    /// So long after its last word a host is gone from etcd.
    pub ttl: Duration,
    /// So long a peer that is gone from there stays while its session does.
    pub grace: Duration,
    pub template: PeerTemplate,
}
