//! Knowledge about the machine and the ports attached on it: shared by the verbs of the
//! command and its processes in the background need.
//!
//! `system` looks at the host: devices, network namespaces, processes, vCPUs. `ports` finds
//! attachments, `held` and `failures` say how they are, `attach` makes them with the `settings` and
//! `lists` of a port, `detach` and `sweep` end them, `detached_by_operator` marks those that the
//! service does not make again, `undelivered` tells it of bytes that the VM of a deleted tap has
//! not; `orphan` takes off what another program has removed the pins of; `reset` ends a connection;
//! `split` makes what downloads need, `downloads` switches them. `config` reads the host's
//! configuration, `quota` bounds the memory of holds by it, and `incast` knows uplinks.
//!
//! Nothing here prints, reads arguments, or knows a verb: failures are returned (`error`), and
//! what is noticed on the way goes to `tracing`.

pub mod attach;
pub mod config;
pub mod congestion_control;
pub mod detached_by_operator;
pub mod downloads;
pub mod error;
pub mod failures;
pub mod far_end;
pub mod flow_key;
pub mod flow_mode;
pub mod holds;
pub mod incast;
pub mod lists;
pub mod lock;
pub mod orphan;
pub mod port_removal;
pub mod port_resets;
pub mod ports;
pub mod priority;
pub mod quota;
pub mod settings;
pub mod size;
pub mod split;
pub mod sweep;
pub mod system;
pub mod undelivered;
pub mod units;
pub mod vm;
