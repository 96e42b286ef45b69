//! Downloads: what a port needs so that its connections can be split (flow/split.h).
//!
//! The sockets of split connections are in a network namespace of their own ([`namespace`]), which
//! has none of the host's addresses, routes or filters. A pair of veth devices for each port leads
//! there ([`pair`]). The programs (`vsnoop_bpf::split`) send segments to the end beside the tap,
//! and take those of the sockets from it.
//!
//! | step of [`turn_on`] | killed after it |
//! |---|---|
//! | 1. make the namespace | the next port uses it, or a command removes it |
//! | 2. make the pair | [`sweep`] deletes it |
//! | 3. attach and pin the programs | an arriving port goes; of another [`sweep`] takes them off |
//! | 4. write `downloads` to the port's record: the splitter begins | |
//!
//! [`turn_off`] goes the other way: the splitter ends what is split, the programs are taken off,
//! then the pair is deleted, so that no segment is sent to a device that is gone.
//!
//! A host that lacks one of these is [`Unavailable`]: the port does its other work, and its
//! downloads stay as they are.

mod error;
pub mod namespace;
mod pair;
mod probe;
mod sweep;
mod switch;
mod sysctl;

pub use error::{Result, Unavailable};
pub use pair::{Pair, TapId, find as find_pair, follow_mtu};
pub use probe::require;
pub use sweep::{remove_namespace_if_unused, sweep, sweep_if_idle};
pub use switch::{
    PATIENCE, SplitFlows, cut, end, end_deleted, remove_pair, remove_pair_of, turn_off, turn_on,
};
