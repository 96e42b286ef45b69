//! One test for each settled rule of the decision core.
//!
//! The tests drive the C code segment by segment through [`case::FlowCase`]. The
//! sender's stream begins shortly before its sequence numbers wrap, so that
//! every rule is tried across the wrap as well.

mod acknowledge;
mod answers;
mod case;
mod congestion;
mod failures;
mod far_end;
mod garbage;
mod hold_engine;
mod hold_last_memory;
mod hold_ranges;
mod hold_segments;
mod hold_window;
mod lease;
mod loss;
mod passive;
mod replaced;
mod report;
mod rollback;
mod route;
mod sender_acks;
mod setup;
mod silence;
mod split;
mod stretch_acks;
mod teardown;
mod timestamps;
mod unconfirmed;
mod vm_lease;
mod window;
