//! Diversion: traffic of chosen VMs to chosen prefixes goes through the link beside the forwarding
//! table.
//!
//! ```text
//! VM -> [its tap: hook] -> [divert tap] -> egress ~~~~~~~+
//! VM <- routes <- [first divert tap] <- ingress <~~~~~~~~+
//! ```
//!
//! A *divert tap* is a tap of the link ([`taps`]). Each diverted VM's tap has one of its own, so
//! that the link knows which VM a frame comes from. Frames of peers enter the host by the first
//! divert tap. [`hooks`] keeps the kernel's hooks on the VMs' taps. They divert only while the peer
//! is up and accepts the prefixes; otherwise the host routes the traffic as if there were no link.
//! Nothing outlives the process: descriptors hold hooks and divert taps, and the kernel removes a
//! deleted tap from a hook's map. [`rules`] decides, without the kernel, which peer a prefix
//! belongs to.

pub mod hooks;
mod rules;
pub mod taps;
