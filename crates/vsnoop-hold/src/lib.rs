//! The hold engine: a TCP sender's other half, towards one VM.
//!
//! The hooks keep a copy of everything that they acknowledge for a VM (flow/hold.h) and hand over what
//! lies within the VM's window. The rest is the engine's: it hands over what is held as the window
//! opens, and again what the VM lost, until the VM has acknowledged it.
//!
//! Nothing here does input or output, and nothing that matters is kept here: a [`View`] says what the
//! hooks and the VM have said so far, a [`Flow`] answers with the next [`Frame`] to be sent, and the
//! caller tells it whether the device took it and notes in shared memory how far the VM was handed
//! data. An engine that starts anew with nothing but the view goes on where the last one was killed;
//! at worst it sends a frame twice, which a TCP drops. [`Chain`] finds the bytes.
//!
//! It has no congestion window: between host and VM is a ring, which takes a frame or refuses it, and
//! the VM's own window. It has no clock but the VM's: a VM that does not run loses nothing, so timers
//! count the time that it had to answer (`ran_ns`).

mod chain;
mod flow;
mod view;

pub use chain::{Chain, Chunks, Slice};
pub use flow::{Flow, Frame, Kind, PATIENCE_NS};
pub use view::View;
