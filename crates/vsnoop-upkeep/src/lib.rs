//! Decisions of user space about the connections of a port, without input and output.
//!
//! The helper, the engine and the commands that detach a port reset connections, repeat RSTs,
//! remove expired records and open windows for incast control. The decisions are here; the maps and
//! the tap behind them are the trait [`Connections`]. vsnoop-bpf implements it with a port's pinned
//! maps, and vsnoop-world with the maps of a simulated kernel, so that simulations run the same
//! code.
//!
//! - `connections`: the trait, and the changes of one record that take several accesses;
//! - `segment` builds RSTs and probes, `reset` ends a connection, `repeat` repeats its RSTs;
//! - `moves` finds VMs that are behind another port, or whose address another VM has taken;
//!   `overheard` reads what is heard of them: ACKs for the hook of the tap, and announcements;
//! - `expiry` removes records, `abandoned` finds connections that no engine serves;
//! - `held` says how many bytes only the host has, `drain` how long a detach waits for them, and
//!   `detach` ends connections that would lose them;
//! - `grants` opens windows of incast control that no packet opens;
//! - `settings`: the policy of a port that is just attached.

pub mod abandoned;
pub mod connections;
pub mod detach;
pub mod drain;
pub mod expiry;
pub mod grants;
pub mod held;
pub mod moves;
pub mod overheard;
pub mod repeat;
pub mod reset;
pub mod segment;
pub mod settings;

pub use connections::{Connections, Place, delete_flow_if, mark_reset};
pub use held::outstanding_bytes;

/// Interval of the helper's looks at all flows.
pub const LOOK_NS: u64 = 250_000_000;
