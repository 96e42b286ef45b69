//! Simulated surroundings of the property tests: two strict TCPs, a hostile network, a clock.
//!
//! [`tcp::Tcp`] is either end of a connection, [`segment::Seg`] a segment between them. [`network`]
//! draws delays and faults, [`clock`] orders events and says when the VM runs. All randomness comes
//! from one seed.

pub mod buffers;
pub mod clock;
pub mod end;
pub mod network;
pub mod segment;
mod send;
pub mod socket;
pub mod tcp;
