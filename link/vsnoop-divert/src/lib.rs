//! Diversion: traffic of chosen VMs to chosen prefixes goes through a link, and no overlay is
//! needed.
//!
//! ```text
//! near host: VM -> [its tap: from_vm, divert] -> [link's tap] -> link ~~~+
//! far host:  VM <- [its tap] <- routes <- [link's tap] <- link <~~~~~~~~~+
//! ```
//!
//! The hook ([`Diversion`]) sends frames of a VM, as they are, out of a tap that belongs to the
//! link's process, which reads them there. At the far host the process writes them into its own
//! tap, addressed to that tap ([`Reentry`]): the host takes them for packets that came in on an
//! interface, and routes them on to the VM, addresses unchanged. [`prepare`] makes a tap, and the
//! host's stack behind it, ready for that.

mod error;
mod hook;
mod reentry;
mod tap;
mod types;

pub use error::{Error, Result, Unready};
pub use hook::{Action, Diversion, Rule, RuleCounters, Sources};
pub use reentry::{Reentry, parse_destination};
pub use tap::{LinkTap, prepare_tap};
