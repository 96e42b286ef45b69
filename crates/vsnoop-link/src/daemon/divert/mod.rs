//! Diversion: traffic of chosen VMs to chosen prefixes goes through the link beside the forwarding table.
//!
//! ```text
//! VM -> [its tap: hook] -> [door] -> egress ~~~~> ingress -> [first door] -> the host routes -> VM
//! ```
//!
//! A *door* is a tap of the link. Each VM's tap that is diverted has one of its own, so that what comes out
//! of it is known to be of that VM ([`doors`]); what peers send comes in by the first. [`hooks`] keeps the
//! kernel's hooks on the VMs' taps, and has them divert only while the peer is there and takes what they
//! would send: in all other cases the hook leaves the traffic to its ordinary way. Nothing of it outlives the
//! process: hooks and doors are held by descriptors, and a tap in a hook's map leaves it with its deletion.
//! [`rules`] decides, without the kernel, which prefix is whose.

pub mod doors;
pub mod hooks;
mod rules;
