//! What user space decides about the connections of a port, without input and output.
//!
//! The helper, the engine and the commands that release a port reset connections, repeat RSTs,
//! remove expired records and open windows for incast control. The decisions are here; the maps and
//! the tap behind them are the trait [`Connections`]. vsnoop-bpf implements it with a port's pinned
//! maps, and vsnoop-world with the maps of a simulated kernel, so that simulations run the same
//! code.
//!
//! `connections` has the trait, and the changes of one record that take several accesses;
//! `segment` builds RSTs, `reset` ends a connection, `tombstones` repeats RSTs, `expiry` removes
//! records, `held` says how many bytes only the host has, `abandoned` finds connections that no
//! engine serves, `drain` says how long a release waits, `release` ends those that a release would leave without their bytes, and
//! `settings` has the policy of a port that is just attached.

pub mod abandoned;
pub mod connections;
pub mod drain;
pub mod expiry;
pub mod held;
pub mod release;
pub mod reset;
pub mod segment;
pub mod settings;
pub mod tombstones;

pub use connections::{Connections, delete_flow_if, mark_reset};
pub use held::outstanding_bytes;

/// Interval of the helper's looks at all flows.
pub const LOOK_NS: u64 = 250_000_000;
