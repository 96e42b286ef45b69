//! Links: the frames of VMs, carried to other hosts (VNET) and compressed where that pays.
//!
//! ```text
//! port -> forwarding -> [merge] -> compress -> queue (ordered) | split (udp) -> wire -> network
//! port <- forwarding <-  merge  <- decompress <-------------------------------- wire <- network
//! ```
//!
//! Everything but [`daemon`] is free of input and output: it is fed with bytes and a clock and
//! returns bytes, actions and times, so that the same code runs under test on a hostile network.

pub mod compress;
pub mod daemon;
pub mod forwarding;
pub mod handshake;
pub mod identity;
pub mod queue;
pub mod session;
pub mod wire;
