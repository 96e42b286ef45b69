//! The service (`vsnoop run`): attaches ports as the configuration says, while taps come and go
//! (docs/guide/service.md).
//!
//! `reconcile` decides, without input and output: it compares what should be attached with what is,
//! and returns actions. Around it, `survey` finds out what there is, `act` attaches and detaches
//! with the functions of the command, `namespaces` knows when devices change, `qmp` when VMs
//! migrate, `departures` bytes that they did not get, `signals` and `control` when the operator
//! wants something, `metrics` has the endpoint for Prometheus (vsnoop-metrics), `service` is the
//! loop.
//!
//! The state is in the kernel: a port that the service attached has digests of its settings in its
//! record. So the service may end, be killed or be replaced by another version at any time; the
//! next one finds its ports, and leaves alone what a command attached. What a command has detached
//! has a mark in `/run/vsnoop` (`vsnoop_host::detached_by_operator`).

mod act;
pub mod control;
mod departures;
mod error;
mod metrics;
mod namespaces;
mod qmp;
mod reconcile;
mod service;
mod signals;
mod survey;

pub use error::{Error, Result};
pub use service::{Options, run};
pub use survey::no_vms_of;
