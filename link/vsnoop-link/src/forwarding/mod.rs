//! Where a frame goes: learned addresses, floods, split horizon.
//!
//! A host's links are one learning bridge: a frame's source address says where its sender is, and
//! what is sent to that address goes there. Peers are a full mesh, so a frame that came from a peer
//! is never handed to another one (split horizon), and nothing ever goes back to where it came
//! from; no loop can form within the mesh. Peers that are not connected with each other, but with a
//! hub, are *relayed*: there their frames go to each other, and to no other peer. Loops that are
//! closed outside of it, by a second way between two LANs, show as addresses that two locations
//! use; what goes round is bounded there.
//!
//! A multicast goes to the locations that have members of its group, where that is known. What a VM
//! sends to all peers is bounded.

mod frame_addresses;
mod groups;
mod location;
mod loops;
mod mac;
mod membership;
mod neighbour_discovery;
mod shared_table;
mod source_filter;
mod table;
mod upper_layer;

pub use frame_addresses::FrameAddresses;
pub use location::{DropReason, ForwardingDecision, LearnedAddress, Location, Scope};
pub use loops::Loop;
pub use mac::{BadMac, Mac};
pub use shared_table::SharedTable;
pub use source_filter::{Forged, SourceFilter};
pub use table::{FixedElsewhere, Room, SourceState, Table, TableSettings, Whereabouts};
