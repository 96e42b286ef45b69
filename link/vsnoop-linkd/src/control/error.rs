//! Errors of a link's files and its socket.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A link of this name runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlreadyUp(pub String);

impl fmt::Display for AlreadyUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        write!(
            f,
            "link {name} is up already on this host; `vsnoop link status {name}` shows it, `vsnoop link down \
             {name}` ends it; for one beside it choose another link.name"
        )
    }
}

impl std::error::Error for AlreadyUp {}

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(transparent)]
    AlreadyUp(#[from] AlreadyUp),
    #[error("{doing} {}", path.display())]
    Path {
        doing: &'static str,
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{doing}")]
    Call {
        doing: &'static str,
        #[source]
        error: io::Error,
    },
}

impl ControlError {
    /// This user may not do that with the file.
    pub(super) fn is_denied(&self) -> bool {
        let Self::Path { error, .. } = self else { return false };
        error.kind() == io::ErrorKind::PermissionDenied
    }

    pub(super) fn path<E: Into<io::Error>>(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |error| Self::Path { doing, path, error: error.into() }
    }

    pub(super) fn call<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Call { doing, error: error.into() }
    }
}

pub(super) type Result<T> = std::result::Result<T, ControlError>;
