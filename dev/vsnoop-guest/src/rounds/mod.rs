//! Rounds: a receiver asks many senders at once, and all answer (the traffic of an incast).
//!
//! [`receiver`] and [`senders`] are the two ends, which a guest and the lab itself may be;
//! [`socket`] opens the connections between them; [`stream`] is what senders send.

pub mod receiver;
pub mod senders;
pub mod socket;
pub mod stream;

pub use receiver::Receiver;
pub use senders::Senders;
pub use stream::Stream;
