//! Why connections of a port cannot be split.

use std::io;
use std::path::PathBuf;

use vsnoop_netdev::netlink;

use crate::error::Error;

/// The module's result.
pub type Result<T> = std::result::Result<T, Unavailable>;

/// Something that the host lacks, or a call that failed.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("make a network namespace for the sockets")]
    Namespace(#[source] io::Error),
    #[error("keep the network namespace of the sockets at {}", path.display())]
    Pin { path: PathBuf, source: io::Error },
    #[error("{doing} in the network namespace of the sockets")]
    SetUp { doing: &'static str, source: netlink::Error },
    #[error("write {value} to {}", path.display())]
    Sysctl { path: PathBuf, value: &'static str, source: io::Error },
    #[error("the kernel has no veth devices (CONFIG_VETH)")]
    NoVeth,
    #[error("make a pair of veth devices")]
    Pair(#[source] netlink::Error),
    #[error("device {0} was deleted meanwhile")]
    Gone(String),
    #[error("the kernel restores no sockets (TCP_REPAIR, CONFIG_CHECKPOINT_RESTORE)")]
    NoRepair(#[source] io::Error),
    #[error(
        "its network namespace {} is not there, and a process with limited privileges cannot make \
         it: restart the service", path.display()
    )]
    NoNamespace { path: PathBuf },
    #[error(transparent)]
    Programs(#[from] vsnoop_bpf::Error),
    #[error(transparent)]
    Host(#[from] Box<Error>),
}

impl From<Error> for Unavailable {
    fn from(error: Error) -> Self {
        Self::Host(Box::new(error))
    }
}

impl From<vsnoop_netdev::Error> for Unavailable {
    fn from(error: vsnoop_netdev::Error) -> Self {
        Error::from(error).into()
    }
}
