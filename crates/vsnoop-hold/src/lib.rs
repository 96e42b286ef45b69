//! The hold engine: the sending half of a TCP, towards one VM.
//!
//! The hooks keep a copy of every byte that they acknowledge for a VM (flow/hold.h) and hand over
//! segments within the VM's window. The engine does the rest: it hands over held bytes as the
//! window opens, and retransmits what the VM lost, until the VM has acknowledged it.
//!
//! Nothing here does input or output, and no state here must survive. [`Engine`] is the loop of one
//! port, over a [`PortAccess`] (memory, device, clock). For each connection a [`View`] is a
//! snapshot of its hold, a [`Flow`] decides on the next [`HoldFrame`], [`headers`] builds its
//! headers, [`Chain`] finds its bytes, and shared memory records how far the VM was handed data. A
//! new engine with nothing but that memory continues where the last one was killed; at worst it
//! sends a frame twice, which a TCP drops.
//!
//! There is no congestion window but for the bound on repeats: between host and VM is a ring, which
//! takes a frame or refuses it, and the VM's own window. Timers count the VM's [`RunTime`], in
//! which it could have answered: a VM that cannot run loses nothing.

mod chain;
mod confirmation;
mod engine;
mod flow;
mod frame;
mod giving_up;
mod hold_frame;
mod late;
mod recovery;
mod repeats;
mod round_trip;
mod run_time;
mod scoreboard;
mod time;
mod view;
mod waits;

pub use chain::{Chain, Chunks, Slice};
pub use engine::{Clock, Device, Engine, Memory, PortAccess, RETRY_NS, Sent, Urgency, Waited};
pub use flow::{Flow, PATIENCE_NS};
pub use frame::headers;
pub use giving_up::Reason;
pub use hold_frame::{HoldFrame, Kind};
pub use run_time::{RunTime, Threads, Tick};
pub use time::{Deadline, TICK_NS, Time};
pub use view::View;
pub use vsnoop_flow::hold::Reclaimed;
