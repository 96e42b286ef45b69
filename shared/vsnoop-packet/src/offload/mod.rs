//! Super-packets cut into segments or datagrams and merged again.
//!
//! A frame has an [`OffloadState`], which says which offloads are left to do, and
//! [`Headers`](crate::headers::Headers), which say where its layers begin. Everything here works on
//! borrowed bytes and allocates nothing per frame. A frame that cannot be parsed passes unchanged.

pub mod merge;
pub mod restore;
pub mod settle;
pub mod split;
pub mod state;
pub mod udp;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod properties;

pub use merge::{Merged, Merger};
pub use split::Split;
pub use state::{Gso, GsoKind, OffloadState};
