//! The kernel side of vsnoop, seen from user space.
//!
//! Each tap has maps of its own, and programs that it shares with others. [`Port::attach`]
//! attaches both hooks through tcx links, and pins links and maps in a directory of the BPF
//! file system, `/sys/fs/bpf/vsnoop/<netns>-<ifindex>`, so that the attachment outlives the
//! process. Everything else opens those pins again: [`Port::list`], [`Port::open`].
//!
//! Nothing is half done: an attach that fails leaves no pin and no hook.

pub mod divert;

mod attach;
mod batch;
mod empty;
mod error;
mod hold;
mod inject;
mod line;
mod link;
mod mapping;
mod pins;
mod port;
mod programs;
mod record;
mod run;
mod slabs;
mod uplink;

pub use attach::{AttachSpec, Limits, Loaded, SILENCE_MS};
pub use empty::EmptyProgram;
pub use error::{Error, Result};
pub use hold::{Hold, Memory, Tended};
pub use inject::OpenHook;
pub use line::{Line, PortIncast, Taken};
pub use pins::{Damaged, Listed, PIN_ROOT};
pub use port::{Hook, Port, account_run_time, bytes_owed};
pub use programs::tidy;
pub use record::{ProgramInfo, Record};
pub use uplink::{UPLINK_ROOT, Uplink, UplinkId, UplinkSettings, WAYS, uplink_rate};
pub use vsnoop_flow::types;
