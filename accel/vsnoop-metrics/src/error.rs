//! The errors of the endpoint.

use std::io;
use std::net::SocketAddr;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the endpoint for Prometheus cannot listen at {at}: name another address in [metrics] \
         listen, or \"off\""
    )]
    Listen { at: SocketAddr, source: io::Error },
    #[error("start the endpoint for Prometheus")]
    Start(#[source] io::Error),
    #[error("the endpoint for Prometheus has ended")]
    Ended,
}
