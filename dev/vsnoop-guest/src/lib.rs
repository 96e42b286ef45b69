//! Code that the guest and the host side of the lab share.
//!
//! The binary of this crate is `/init` of the lab's virtual machines; the library holds the
//! protocols that it speaks and the byte patterns that both ends can compute:
//! - [`transfer`]: the paper's TCP application, over the network under test; [`server`] is its
//!   receiving end, which the lab also runs on the host itself;
//! - [`web`]: a web server in the guest, where the image has one;
//! - [`rounds`]: many senders that answer one receiver at once, both ends;
//! - [`control`]: commands to a guest, over its second serial port, so that they neither use nor
//!   disturb that network; [`tcp_counts`] reads what TCP has counted.

pub mod control;
pub mod pattern;
pub mod rounds;
pub mod server;
pub mod tcp_counts;
pub mod transfer;
pub mod web;
