//! The simulated surroundings of the property tests: two strict TCPs, a hostile network, a clock.
//!
//! [`tcp::Tcp`] is either end of a connection, [`segment::Seg`] what travels between them;
//! [`network`] draws what befalls it on the way, [`clock`] orders events and knows when the VM
//! runs. Everything random comes from one seed.

pub mod clock;
pub mod end;
pub mod network;
pub mod segment;
mod send;
pub mod tcp;
