//! The data threads: who does what, what they share, and how they talk to each other.
//!
//! [`crew`] runs the two halves of a pair, [`pairs`] says which pair serves a peer. [`shared`] is
//! the state that all read. The control thread sends [`orders`]; the data threads report by
//! [`event`]s and [`fault`]s. [`handoff`] carries frames from one thread to another.

pub mod clock;
pub mod crew;
pub mod event;
pub mod fault;
pub mod handoff;
pub mod orders;
pub mod pairs;
pub mod shared;
pub mod slots;
