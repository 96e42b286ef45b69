//! A small network on one machine, made of namespaces, taps and user-space devices.
//!
//! [`net`] owns namespaces and the devices in them.

pub mod net;
