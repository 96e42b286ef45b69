//! Hosts that announce themselves in etcd: their identity, and whether they may be peers.
//!
//! `document` writes and parses the entry of a host (untrusted bytes). `roster` decides which hosts
//! is a peer, without input and output. `settings` reads the files that etcd is reached with. The
//! thread that talks to etcd is crate vsnoop-etcd; [`Membership`] is between it and the link, and
//! [`Members`] has one while there is an `[etcd]`.
//!
//! Reasons are in docs/decisions/0028-membership.md.

mod document;
mod link;
mod members;
mod roster;
mod settings;

pub use link::{Membership, MembershipError};
pub use members::Members;
pub use settings::SettingsError;
