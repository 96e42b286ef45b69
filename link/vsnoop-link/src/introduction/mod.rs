//! Direct paths between peers of a hub: the hub introduces them to each other.
//!
//! Two hosts that reach each other by a hub ([`Hub`]) ask it for each other. While both do, the hub
//! tells each the address of the other, and passes on the pieces of their handshake. With the keys
//! of that handshake they send datagrams to each other's addresses at the same time, so that NATs
//! let the answers in. Each end uses the session when a probe of its own was answered.
//!
//! ```text
//! a                              hub                              b
//! | -- Ask { label 7, key of b } -> | <- Ask { label 3, key of a } -- |
//! | <- Known { 7, address of b } -- | -- Known { 3, address of a } -> |
//! | -- ToPeer { 7, ClientHello } -> | -- FromPeer { 3, ... } -------> |   TLS 1.3, in pieces that
//! | <------- FromPeer { 7, ... } -- | <- ToPeer { 3, ServerHello } -- |   both ends retransmit
//! | ===== datagrams under the session's keys, past the hub ========== |
//! ```
//!
//! The hub is not trusted. It supplies addresses for probes only, and decides whether to supply
//! them. The host that answers there must prove the pinned key or the certificate. A hub that lies
//! keeps two hosts on its relay.
//!
//! A *label* is a number by which a host knows a peer behind its hub. The hub uses it for frames,
//! too: records with what it relays from that peer have the label added to the session's number, so
//! that the host learns the addresses of VMs at the peer where they are, and not at the hub. The
//! direct path can be taken and left without learning anything anew.
//!
//! [`Contact`] is such a peer at a host, [`Exchange`] a handshake in pieces, [`HubMessage`] what is
//! said.

mod contact;
mod exchange;
mod hub;
#[cfg(test)]
mod hub_tests;
mod message;
mod pace;
#[cfg(test)]
mod pace_tests;
#[cfg(test)]
mod tests;

pub use contact::{Contact, ContactAction, ContactSettings};
pub use exchange::Exchange;
pub use hub::{Hub, HubAction, PassedOn, Question};
pub use message::{About, HubMessage, LARGEST_BYTES, LEAST_KEPT_S, Label, Piece, Standing};
pub use pace::AskPace;

/// Peers behind hubs that a host may have at most.
pub const MOST_ASKED: usize = 4096;
/// Peers that a host asks for in a second when its hub is up.
pub const ASKS_PER_S: u64 = 128;
/// Messages that one end takes of the other in a second: questions ([`ASKS_PER_S`]) and pieces of
/// handshakes. A hub passes on and tells up to 192 beside its answers.
pub const MESSAGES_PER_S: u32 = 512;
/// The largest label. A host with several pairs of threads takes multiples of their number, so that
/// a record with a label is received by the pair that has its session.
pub const MOST_LABELS: u16 = u16::MAX;
