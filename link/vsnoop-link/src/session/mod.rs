//! A peer over time: dialled, alive, rekeyed, roaming, lost, back again.
//!
//! [`Peer`] is the state machine of one peer: it takes events with their time and returns
//! actions. Its parts are small machines of their own: which session stays when both ends dialled
//! ([`order`]), when to dial again ([`back_off`]), what probes tell of the path ([`round_trip`],
//! [`delivery`]) and how large a packet may be ([`path_mtu`]). What the two ends say to each other
//! is in [`message`].
//!
//! # Phases of a session
//!
//! The caller makes sessions (module `establish` of vsnoop-linkd shows how one comes to be, from
//! [`Action::Dial`] to the first frame); from [`PeerEvent::Dialled`] or [`PeerEvent::Accepted`] on
//! [`Peer`] has it in one of these phases. At most one session of a peer is in use.
//!
//! ```text
//!       Dialled, Accepted
//!        |           | a session of higher rank is there (order)
//!        v           v
//!     pending ---> retiring ---+
//!        |           ^         | retire_ns is over, or the peer makes too many sessions
//!        | heard     | another |
//!        v           | is used v
//!      in use -------+      forgotten
//!        |                     ^
//!        +---------------------+ dead_ns without an answer, failed, closed by the peer
//! ```
//!
//! | phase | received | sent | entered with |
//! |---|---|---|---|
//! | pending | yes | probes, by the initiator | [`Action::Install`] |
//! | in use | yes | frames and probes | [`Action::Use`] |
//! | retiring | yes, what is still under way | nothing | [`Action::Install`] if it is new |
//! | forgotten | no | no | [`Action::Forget`], and [`Action::Down`] if it was in use |

mod address;
pub mod back_off;
pub mod batches;
pub mod delivery;
#[cfg(test)]
mod introduced_tests;
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

pub use address::{canonical_address, is_of_another_host};
pub use message::{Counters, Message};
pub use peer::Peer;
pub use types::{
    Action, DialError, End, Overdue, PeerEvent, PeerSettings, PeerSnapshot, Report, SessionId,
    SessionInfo, SessionState, SessionTraffic,
};
