//! A peer over time: dialled, alive, rekeyed, roaming, lost, back again.
//!
//! [`Peer`] is the state machine of one peer; it is told events and the time and answers with
//! actions. Its parts are small machines of their own: who stays when both ends dialled
//! ([`order`]), when to dial again ([`back_off`]), what probes tell of the path ([`round_trip`],
//! [`delivery`]) and how large a packet may be ([`path_mtu`]). What the two ends say to each other
//! is in [`message`].

pub mod back_off;
pub mod delivery;
pub mod message;
pub mod order;
pub mod path_mtu;
mod peer;
mod probes;
pub mod round_trip;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod types;

pub use message::{Counters, Message};
pub use peer::{Peer, canonical};
pub use types::{
    Action, DialError, End, PeerEvent, PeerSettings, PeerSnapshot, Report, SessionId, SessionInfo,
    SessionState, SessionTraffic,
};
