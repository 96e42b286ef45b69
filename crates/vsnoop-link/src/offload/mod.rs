//! Super-packets cut into segments or datagrams and merged again, fragments, the MSS.
//!
//! A frame is described by what it still owes ([`Owed`]) and where its layers begin ([`Headers`]).
//! Everything here works on borrowed bytes and allocates nothing per frame; what cannot be read is
//! passed on untouched, never refused with a panic.

pub mod checksum;
pub mod fragment;
pub mod headers;
pub mod merge;
pub mod mss;
pub mod owed;
pub mod restore;
pub mod settle;
pub mod split;
pub mod udp;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod testing;

pub use fragment::{Fragment, Fragments, Rejoin};
pub use headers::Headers;
pub use merge::{Merged, Merger};
pub use owed::{Gso, GsoKind, Owed};
pub use split::Split;
