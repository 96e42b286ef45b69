//! What waits for an ordered transport: fair, short, dropped at its entry.
//!
//! A kernel's send buffer is one line for all: what is in it delays everything behind it, for
//! seconds if it is long. So it is kept short (TCP_NOTSENT_LOWAT), and what it does not take waits
//! here, where flows have lines of their own ([`FairQueue`], as RFC 8290 does it), where a line
//! that stands is cut short by drops (RFC 8289), and where the whole is bounded in time, by the
//! measured rate of the connection ([`rate`]). [`Classifier`] says which connection a flow uses: a
//! few packets now and then go beside the bulk, not behind it.

mod arena;
mod classify;
mod codel;
mod fair;
pub mod rate;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use classify::{Classifier, Kind};
pub use fair::{FairQueue, Limits, Stats};
