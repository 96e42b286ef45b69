//! A small network on one machine, made of namespaces, taps and user-space devices.
//!
//! [`net`] owns namespaces and the devices in them; [`relay`] moves frames between two taps and does
//! to them what networks and guests do; [`topology`] puts a client, a bridge and a VM's stand-in
//! together; [`stream`] sends byte streams through and verifies every byte; [`bulk`] measures how much
//! goes through.

pub mod bulk;
pub mod net;
pub mod relay;
mod socket;
pub mod stream;
pub mod topology;
