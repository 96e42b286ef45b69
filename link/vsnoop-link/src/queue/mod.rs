//! The queue before a transport: fair between flows, short, and dropping.
//!
//! A kernel's send buffer is one queue for all flows: its contents delay everything behind them,
//! for seconds if it is long. So it is kept short (TCP_NOTSENT_LOWAT, over UDP SO_SNDBUF), and
//! packets that it does not take wait here: flows have queues of their own ([`FairQueue`],
//! RFC 8290), drops shorten a standing queue (RFC 8289), and the measured rate of the connection
//! bounds the whole in time ([`rate`]). [`Classifier`] says which connection a flow uses: sparse
//! flows have one apart from bulk flows.

mod arena;
mod classify;
mod codel;
mod fair;
pub mod rate;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use classify::{Classifier, FrameKind};
pub use fair::{FairQueue, QueueLimits, QueueStats};
