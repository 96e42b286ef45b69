//! The mutual TLS 1.3 handshake and what the two ends agree on in it.
//!
//! ```text
//! initiator                                 acceptor
//!    | -- TLS 1.3: both show certificates ---- |   who is it?           (identity)
//!    | -- Hello -----------------------------> |   which session, what can it do?
//!    | <------ Accepted { Hello, Agreed } ---- |   or Refused { reason }
//! ```
//!
//! [`Machine`] is one end of it: it takes received bytes, and returns bytes to send and the
//! outcome. [`Guard`] runs before the acceptor: it bounds the resources of unauthenticated callers.
//! Under load it has them answer a [`Challenge`] before the handshake.
//!
//! A control connection makes a session: the keys of its records are [`Secrets`] of the handshake,
//! and the connection itself is closed. For other keys there is another handshake. A data
//! connection joins a session and carries its frames.

mod agree;
mod challenge;
mod error;
mod guard;
mod hello;
mod machine;
mod secrets;

pub mod testing;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use agree::{Answer, Mismatch};
pub use challenge::{CHALLENGE_BYTES, Challenge};
pub use error::{Error, ErrorKind, Violation};
pub use guard::{Admitted, CallId, CallRefused, Guard, GuardCounts, GuardLimits, Permit};
pub use hello::{
    Agreed, BadHello, Hello, HelloTransport, MOST_BYTES, MOST_TAKES, Purpose, Refusal, RefusalKind,
    Reply, Versions,
};
pub use machine::{Machine, Outcome, Step};
pub use secrets::{Cipher, Direction, Secrets};

/// Longest time of a handshake: some round trips of a bad network.
pub const DEADLINE: Duration = Duration::from_secs(5);
