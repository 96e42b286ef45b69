//! User space's interface to the BPF programs.
//!
//! Each tap has maps of its own, and shares programs with others. [`Port::attach`] attaches both
//! hooks through tcx links, and pins links and maps in a directory of the BPF file system,
//! `/sys/fs/bpf/vsnoop/<netns>-<ifindex>`, so that the attachment outlives the process. All other
//! functions open those pins: [`Port::list`], [`Port::open`].
//!
//! An attach that fails leaves no pin and no hook.

pub mod split;

mod account;
mod attach;
mod batch;
mod bpffs;
mod congestion_control;
mod connections;
mod descriptor;
mod empty;
mod entry;
mod error;
mod grant_queue;
mod hold;
mod hook;
mod inject;
mod link;
mod list;
mod lockdown;
mod map;
mod mapping;
mod maps;
mod objects;
mod orphan;
mod pins;
mod plain_hand_over;
mod port;
mod program_slot;
mod programs;
mod reclaim;
mod record;
mod reserve;
mod routed;
mod run;
mod service_mark;
mod slabs;
mod spec;
mod text;
mod uplink;

pub use account::{ProgramInfo, account_run_time};
pub use attach::Loaded;
pub use congestion_control::CongestionControl;
pub use empty::EmptyProgram;
pub use error::{Damage, Error, Result, Unready};
pub use grant_queue::{GrantQueue, PortIncast};
pub use hold::{Hold, HoldMaps};
pub use hook::Hook;
pub use inject::{MarkedRun, OpenHook};
pub use list::{Damaged, Listed};
pub use lockdown::lockdown;
pub use pins::PIN_ROOT;
pub use plain_hand_over::PlainHandOver;
pub use port::Port;
pub use programs::sweep;
pub use record::Record;
pub use reserve::Reserve;
pub use service_mark::ServiceMark;
pub use spec::{AttachSpec, TableLimits};
pub use uplink::{INGRESS_MAX, UPLINK_ROOT, Uplink, UplinkId, UplinkSettings};
pub use vsnoop_flow::hold::Reclaimed;
pub use vsnoop_flow::incast::uplink_rate;
pub use vsnoop_flow::types;
