//! The decisions of user space about the connections of a port, without input and output.
//!
//! **The engine** is the sending half of a TCP, towards one VM. The hooks keep a copy of every byte
//! that they acknowledge for a VM (flow/hold.h) and hand over segments within the VM's window. The
//! engine does the rest: it hands over held bytes as the window opens, and retransmits what the VM
//! lost, until the VM has acknowledged it.
//!
//! No state here must survive. [`Engine`] is the loop of one port, over a [`PortAccess`] (memory,
//! device, clock). For each connection a [`View`] is a snapshot of its hold, a [`Flow`] decides on
//! the next [`HoldFrame`], [`headers`] builds its headers, [`Chain`] finds its bytes, and shared
//! memory records how far the VM was handed data. A new engine with nothing but that memory
//! continues where the last one was killed; at worst it sends a frame twice, which a TCP drops.
//!
//! There is no congestion window but for the bound on repeats: between host and VM is a ring, which
//! takes a frame or refuses it, and the VM's own window. Timers count the VM's [`RunTime`], in
//! which it could have answered: a VM that cannot run loses nothing.
//!
//! **The helper, the engine and the commands that detach a port** reset connections, repeat RSTs,
//! remove expired records and open windows for incast control. The maps and the tap behind these
//! decisions are the trait [`Connections`]. vsnoop-bpf implements it with a port's pinned maps, and
//! vsnoop-world with the maps of a simulated kernel, so that simulations run the same code.
//!
//! - `connections`: the trait, and the changes of one record that take several accesses;
//! - `segment` builds RSTs and probes, `reset` ends a connection, `rst_repeats` repeats its RSTs;
//! - `moves` finds VMs that are behind another port, or whose address another VM has taken;
//!   `overheard` reads what is heard of them: ACKs for the hook of the tap, and announcements;
//! - `expiry` removes records, `engine_silence` finds connections that no engine serves;
//! - `outstanding` says how many bytes only the host has, `drain_limit` how long a detach waits for
//!   them, and `detach_resets` ends connections that would lose them;
//! - `grants` opens windows of incast control that no packet opens;
//! - `initial_policy`: the policy of a port that is just attached.

pub mod connections;
pub mod detach_resets;
pub mod drain_limit;
pub mod engine_silence;
pub mod expiry;
pub mod grants;
pub mod initial_policy;
pub mod moves;
pub mod outstanding;
pub mod overheard;
pub mod reset;
pub mod rst_repeats;
pub mod segment;

mod chain;
mod confirmation;
mod engine;
mod flow;
mod frame;
mod giving_up;
mod hold_frame;
mod late;
mod listeners;
mod port_access;
mod recovery;
mod repeats;
mod round_trip;
mod run_time;
mod scoreboard;
mod time;
mod view;
mod waits;

pub use chain::{Chain, Chunks, Slice};
pub use connections::{Connections, Place, delete_flow_if, mark_reset};
pub use engine::{Engine, RETRY_NS, Urgency};
pub use flow::{Flow, PATIENCE_NS};
pub use frame::headers;
pub use giving_up::Reason;
pub use hold_frame::{HoldFrame, Kind};
pub use outstanding::outstanding_bytes;
pub use port_access::{Clock, Device, Memory, PortAccess, Sent, Waited};
pub use run_time::{RunTime, Threads, Tick};
pub use time::{Deadline, TICK_NS, Time};
pub use view::View;
pub use vsnoop_flow::hold::Reclaimed;

/// Interval of the helper's looks at all flows.
pub const LOOK_NS: u64 = 250_000_000;
