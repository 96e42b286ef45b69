//! Super-packets cut into segments or datagrams and merged again, fragments, the MSS.
//!
//! A frame has an [`OffloadState`], which says which offloads are left to do, and [`Headers`],
//! which say where its layers begin. Everything here works on borrowed bytes and allocates nothing
//! per frame. A frame that cannot be parsed passes unchanged.

pub mod checksum;
pub mod fragment;
pub mod headers;
pub mod merge;
pub mod mss;
pub mod restore;
pub mod settle;
pub mod split;
pub mod state;
pub mod udp;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod properties;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use fragment::{Fragment, Fragments, Rejoin};
pub use headers::Headers;
pub use merge::{Merged, Merger};
pub use split::Split;
pub use state::{Gso, GsoKind, OffloadState};
