//! Errors in the text of a configuration. Each names the key and what is allowed.

use ipnet::IpNet;
use vsnoop_config::Fault;

use super::rules::TooManyRules;
use super::value::ValueError;
use vsnoop_link::forwarding::Mac;

/// An error in the text of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    #[error(
        "this is no configuration of a link: it has no table [link]; docs/guide/links/configuration.md says what to write there"
    )]
    NoLinkTable,
    #[error(transparent)]
    Fault(#[from] Fault),
    /// `line`: of the table that says the same.
    #[error("{same} (the [[{}]] of line {line})", same.table())]
    Twice { same: Same, line: usize },
    #[error("the file's name is none for a link; set link.name: {0}")]
    FileName(ValueError),
    #[error("link.crl goes with link.cert and link.ca only")]
    RevocationAlone,
    #[error(
        "link.cert and link.ca belong together: this host's certificate, and the CA that peers are \
         certified by"
    )]
    HalfAuthority,
    #[error("a link needs at least one [[peer]], or [etcd]")]
    NoPeer,
    #[error("a link needs at least one [[port]] or [[divert]], or link.local")]
    NoPort,
    #[error("a [[peer]] needs a name")]
    NamelessPeer,
    #[error("the same key stands in the [[peer]] of line {line}; every host needs one of its own")]
    SameKey { line: usize },
    #[error(
        "peer {peer} needs one of: key (its public key, as `vsnoop link keygen FILE --show` prints \
         it there), subject (the name in its certificate, with link.ca)"
    )]
    PeerTrust { peer: String },
    #[error("peer {peer} has a subject, which needs link.cert and link.ca")]
    NoAuthority { peer: String },
    #[error(
        "the tap cannot be called vsl-{link}, which is too long for an interface: set port.name"
    )]
    LongTap { link: String },
    #[error(
        "a [[port]] has one of: bridge (the link puts a tap into it), tap (which the link makes), \
         interface (which exists)"
    )]
    PortKind,
    #[error("{mac} is an address of port {port}, too; leave out one")]
    SameMac { mac: Mac, port: String },
    #[error(transparent)]
    Rules(#[from] TooManyRules),
    #[error("a [[compress]] needs a method: off, lz4, zstd, zstd:LEVEL or auto")]
    NoMethod,
    #[error("a [[divert]] needs a prefix, or a list of them: where the traffic goes to")]
    DivertPrefix,
    #[error("a [[divert]] needs an interface: the VM's tap")]
    DivertInterface,
    #[error("a [[divert]] needs a peer: behind which the prefix is")]
    DivertPeer,
    #[error(
        "a [[divert]] needs an address, or link.local: the sources that the VM may use, since no \
         firewall of this host sees diverted packets"
    )]
    DivertSources,
    #[error(
        "interface {interface} is a [[port]], by which all its frames go through the link: leave \
         out one of both"
    )]
    DivertedPort { interface: String },
    #[error(
        "prefix {prefix} of interface {interface} is diverted already (the [[divert]] of line \
         {line}); leave out one of both"
    )]
    DivertedTwice { prefix: IpNet, interface: String, line: usize },
    #[error(
        "prefix {prefix} is in {own} of link.local, which is of VMs of this host; give one that is \
         behind the peer"
    )]
    DivertedHere { prefix: IpNet, own: IpNet },
    #[error("[etcd] needs endpoints: the nodes of etcd")]
    NoEndpoints,
    #[error(
        "https:// in etcd.endpoints and etcd.ca belong together: the certificates by which the \
         nodes are known"
    )]
    EtcdAuthority,
    #[error("etcd.cert and etcd.key belong together, and to https:// in etcd.endpoints")]
    EtcdIdentity,
    #[error("etcd.user and etcd.password (a file with it) belong together")]
    EtcdLogin,
}

/// A value that two tables of a kind have, and must not.
#[derive(Debug, thiserror::Error)]
pub enum Same {
    #[error("another peer is called {0}; names must differ")]
    PeerName(String),
    #[error("another peer has the subject {0}, too")]
    Subject(String),
    #[error("interface {0} is a port already; each tap needs a name of its own")]
    PortName(String),
    #[error("bridge {0} has a port already; with two, frames would go round for ever")]
    Bridge(String),
}

impl Same {
    /// The kind of the tables.
    fn table(&self) -> &'static str {
        match self {
            Self::PeerName(_) | Self::Subject(_) => "peer",
            Self::PortName(_) | Self::Bridge(_) => "port",
        }
    }
}
