//! A small network on one machine, made of namespaces, taps and user-space devices.
//!
//! [`net`] owns namespaces and the devices in them; [`relay`] moves frames between two taps and
//! does to them what networks and guests do; [`topology`] puts a client, a bridge and a VM's
//! stand-in together; [`stream`] sends byte streams through and verifies every byte; [`bulk`]
//! measures how much goes through. [`fan_in`] puts many senders before a VM, behind a [`switch`]
//! with a shallow buffer, which may mark. [`capture`] tells what TCP did. [`hosts`] is two hosts
//! and the path between them.

pub mod bulk;
pub mod capture;
pub mod fan_in;
pub mod hosts;
pub mod net;
pub mod relay;
pub mod socket;
pub mod stream;
pub mod switch;
pub mod topology;
