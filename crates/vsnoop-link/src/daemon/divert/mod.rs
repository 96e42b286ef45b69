//! Diverted traffic at its two ends: the link's own tap, and what may come out of it.
//!
//! ```text
//! VM -> [tap: from_vm, divert] -> [link's tap] -> link ~~~~> link -> [link's tap] -> the host routes -> VM
//! ```
//!
//! The hook (`vsnoop_bpf::Diversion`) sends frames of VMs, as they are, out of a tap that belongs to the
//! link's process, which reads them there. At the far host the process writes them into its own tap,
//! addressed to that tap ([`Reentry`]): the host takes them for packets that came in on an interface, and
//! routes them on to the VM, addresses unchanged. [`prepare`] makes a tap, and the host's stack behind
//! it, ready for that.

mod reentry;
mod tap;

pub use reentry::{Reentry, destination};
pub use tap::{LinkTap, prepare};
