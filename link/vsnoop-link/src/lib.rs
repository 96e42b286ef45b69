//! Links: the frames of VMs, carried to other hosts (VNET) and compressed where that pays.
//!
//! ```text
//! port -> forwarding -> [merge] -> compress -> queue (ordered) | split (udp) -> wire -> network
//! port <- forwarding <-  merge  <- decompress <-------------------------------- wire <- network
//! ```
//!
//! All of it is free of input and output: it is fed with bytes and a clock and returns bytes,
//! actions and times, so that the same code runs under test on a hostile network.  The daemon
//! around it is vsnoop-linkd. No dependency does input or output, and clippy.toml forbids what std
//! has.

// Tests measure.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod compress;
pub mod forwarding;
pub mod handshake;
pub mod identity;
pub mod introduction;
pub mod queue;
pub mod rate;
pub mod session;
pub mod slots;
pub mod wire;
