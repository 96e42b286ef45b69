//! Records as they pass between hosts: sealed, counted, not replayed.
//!
//! A *record* is what one datagram carries, or what follows a length on an ordered transport. It is
//! sealed ([`seal`]) under a key that both ends exported from the TLS handshake of their session;
//! its number is nonce and replay counter in one ([`replay`]). What is inside is one *item*
//! ([`item`]): a frame, a piece of one, something compressed, or a message of the session.

pub mod fragment;
pub mod item;
pub mod replay;
pub mod seal;
pub mod stream;
pub mod traffic_class;
