//! Why etcd is of no use at the moment.

use tonic::{Code, Status};

use crate::text::make_printable;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the settings for TLS are of no use")]
    Tls(#[source] tonic::transport::Error),
    #[error("it is not reached")]
    Unreached(#[source] tonic::transport::Error),
    #[error("it does not answer within {seconds} s")]
    Silent { seconds: u64 },
    #[error("it refuses the user {user}: {why}")]
    Login { user: String, why: String },
    #[error("it refuses to {doing}: {why}")]
    Refused { doing: &'static str, why: String },
    #[error("the watch has ended: {why}")]
    Watch { why: String },
    #[error(
        "another host announces the name {name} there; give this one another (etcd.name), or wait \
         until that host is gone"
    )]
    NameTaken { name: String },
    #[error("the entry of this host is changed by another writer at the same time")]
    Contended,
}

impl Error {
    pub(crate) fn refused(doing: &'static str, status: &Status) -> Self {
        Self::Refused { doing, why: describe_status(status) }
    }

    /// This user may not do it: other endpoints say the same.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Login { .. } | Self::NameTaken { .. })
    }
}

/// The error of etcd or of the transport.
pub(crate) fn describe_status(status: &Status) -> String {
    let said = make_printable(status.message());
    match (status.code(), said.is_empty()) {
        (code, true) => format!("{code:?}"),
        // The words are those of the connection.
        (Code::Unknown, false) => {
            let source = std::error::Error::source(status).map(|error| error.to_string());
            source.map_or(said.clone(), |source| format!("{said}: {}", make_printable(&source)))
        }
        (_, false) => said,
    }
}
