//! Where a frame goes: learned addresses, floods, split horizon.
//!
//! A host's links are one learning bridge: a frame's source address says where its sender is, and
//! what is sent to that address goes there. Peers are a full mesh, so a frame that came from a peer
//! is never handed to another one (split horizon), and nothing ever goes back to where it came
//! from; no loop can form within the mesh. Loops that are closed outside of it, by a second way
//! between two LANs, show as addresses that two locations use; what goes round is bounded there.

mod frame_addresses;
mod location;
mod mac;
mod shared_table;
mod source_filter;
mod table;

pub use frame_addresses::FrameAddresses;
pub use location::{DropReason, ForwardingDecision, Location};
pub use mac::{BadMac, Mac};
pub use shared_table::SharedTable;
pub use source_filter::{Forged, SourceFilter};
pub use table::{LearnedAddress, Source, Table, TableSettings, Whereabouts};
