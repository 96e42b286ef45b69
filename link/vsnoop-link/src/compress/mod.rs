//! Payload made smaller where that pays.
//!
//! A *message* (a link's head and one super-packet) passes the [`Encoder`] of its connection and
//! comes out of the peer's [`Decoder`] as it was. On an ordered connection each flow keeps a
//! context, so that a message refers to earlier ones of its own flow; on UDP each [`unit`] stands
//! alone. Nothing here reads a socket or waits; what encoding costs is read from a [`CodingClock`].
//!
//! A `Compressed` message has changed the context: it must reach the peer, in order, or the
//! connection must end. Whatever is to be dropped is dropped before it comes here.
//!
//! # Oracles
//!
//! The length of what was compressed tells whether its parts resemble each other. An attacker who
//! sees the lengths on the link *and* has chosen text compressed together with another user's
//! secret can guess the secret piece by piece; encryption does not help (CRIME, BREACH, and for
//! tunnels VORACLE). What can be together is therefore kept small:
//!
//! - A context belongs to one flow of one owner. Other VMs, and other connections of the same VM,
//!   neither read nor write it, and a slot that another flow takes is emptied first.
//! - What is encrypted in the guest (TLS, SSH) is random here. It stays raw, and there is no
//!   oracle.
//! - Open to the attack is one plaintext connection that carries both: cookies beside a page that
//!   an attacker can write to, say. Compression is off unless a rule asks for it; do not ask for it
//!   there.
//! - A dictionary (`Policy::dictionary`) joins all flows of an owner, so text of the attacker in
//!   one flow meets secrets in another. It is for bulk of one trust: backups, images, replication.

mod auto;
mod body;
mod clock;
mod decision;
mod decoder;
mod encoder;
mod limits;
mod method;
mod probe;
mod stats;
mod stream;
pub mod unit;

pub use body::DecodeError;
pub use clock::CodingClock;
pub use decision::Decision;
pub use decoder::Decoder;
pub use encoder::{Encoded, Encoder};
pub use limits::{Codecs, CompressionLimits, DecoderMemory};
pub use method::{DEFAULT_ZSTD_LEVEL, Method, MethodError, Owner, Policy, ZSTD_LEVELS};
pub use stats::CompressionStats;

#[cfg(test)]
mod tests;
