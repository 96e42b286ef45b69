//! What the guest and the host side of the lab have in common.
//!
//! The binary of this crate is `/init` of the lab's virtual machines; the library holds the two
//! protocols that it speaks and the byte pattern that both ends can compute:
//! - [`transfer`]: the paper's TCP application, over the network under test; [`server`] is its
//!   receiving end, which the lab also runs on the host itself;
//! - [`control`]: commands to a guest, over its second serial port, so that they neither use nor
//!   disturb that network.

pub mod control;
pub mod pattern;
pub mod server;
pub mod transfer;
