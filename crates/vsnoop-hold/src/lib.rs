//! The hold engine: a TCP sender's other half, towards one VM.
//!
//! The hooks keep a copy of everything that they acknowledge for a VM (flow/hold.h) and hand over
//! what lies within the VM's window. The rest is the engine's: it hands over what is held as the
//! window opens, and again what the VM lost, until the VM has acknowledged it.
//!
//! Nothing here does input or output, and nothing that matters is kept here. [`Engine`] is the loop
//! of one port, over a [`Host`] (memory, device, clock). Of each connection a [`View`] says what
//! the hooks and the VM have said so far, a [`Flow`] answers with the next [`Frame`] to be sent,
//! [`headers`] makes its headers, [`Chain`] finds its bytes, and shared memory notes how far the VM
//! was handed data. An engine that starts anew with nothing but that memory goes on where the last
//! one was killed; at worst it sends a frame twice, which a TCP drops.
//!
//! It has no congestion window: between host and VM is a ring, which takes a frame or refuses it,
//! and the VM's own window. Timers count the time that the VM had to answer (`run_time_ns`): one
//! that does not run loses nothing.

mod chain;
mod engine;
mod flow;
mod frame;
mod time;
mod view;

pub use chain::{Chain, Chunks, Slice};
pub use engine::{
    Clock, Device, Engine, Host, Memory, RETRY_NS, Reclaimed, Sent, TICK_NS, Urgency,
};
pub use flow::{Flow, Frame, Kind, PATIENCE_NS, Reason};
pub use frame::headers;
pub use time::{Deadline, Time};
pub use view::View;
