//! Faults of a session, reported to the control thread.

use std::io;

use vsnoop_link::compress::DecodeError;

/// A fault of a session while sending.
#[derive(Debug)]
pub enum Fault {
    /// A connection ended.
    Broken(io::Error),
    /// The host refused a datagram for its length.
    TooLong { bytes: usize },
}

/// The reason why the ingress thread gives up a session.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("an item of {bytes} bytes: out of step")]
    OutOfStep { bytes: usize },
    #[error("decompression: {0}")]
    Damaged(DecodeError),
    /// The peer has sent what our hello does not accept.
    #[error("the peer has sent {0}")]
    NotAccepted(DecodeError),
}

impl From<DecodeError> for ReceiveError {
    fn from(error: DecodeError) -> Self {
        if error.is_beyond_limits() { Self::NotAccepted(error) } else { Self::Damaged(error) }
    }
}
