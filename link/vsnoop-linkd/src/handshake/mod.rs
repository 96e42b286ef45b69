//! Calls to peers and from them, up to a session.
//!
//! [`dial`] calls a peer, [`race`] connects, [`tcp_handshake`] proves both ends, and [`establish`]
//! makes a session of that.
//! [`callers`], [`complaints`] and [`thread_limit`] bound what unknown callers cost.

pub mod callers;
pub mod complaints;
pub mod dial;
pub mod establish;
pub mod listen;
pub mod race;
pub mod tcp_handshake;
pub mod tcp_path;
pub mod thread_limit;
