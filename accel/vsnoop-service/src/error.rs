//! The errors that end the service.

use std::io;
use std::path::PathBuf;

use vsnoop_netdev::netlink;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Host(#[from] vsnoop_host::error::Error),
    #[error(transparent)]
    Metrics(#[from] vsnoop_metrics::Error),
    #[error("listen for changes of network devices")]
    Events(#[source] netlink::Error),
    #[error("watch for network namespaces in {directory}")]
    Namespaces { directory: &'static str, source: io::Error },
    #[error("watch for notes of undelivered bytes in {}", directory.display())]
    Notes { directory: PathBuf, source: io::Error },
    #[error("catch signals")]
    Signals(#[source] io::Error),
    #[error("listen at {}", socket.display())]
    Control { socket: PathBuf, source: io::Error },
    #[error("ask the service at {}", socket.display())]
    Ask { socket: PathBuf, source: io::Error },
    #[error("wait for events")]
    Wait(#[source] io::Error),
}
