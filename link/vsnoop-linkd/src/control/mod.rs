//! Talking to a running link: a Unix socket, one JSON line each way per connection.
//!
//! `message` and `status` have what is said, `server` is the link's end, `client` the command's.
//! `files` knows the files: `/run/vsnoop/link/NAME.sock`, and NAME.lock, which the link holds while
//! it lives. The lock distinguishes the socket of a killed link from the socket of a running one.

mod client;
mod error;
mod files;
mod message;
mod server;
mod status;

pub use client::{AskError, ask_link, list_running};
pub use error::{AlreadyUp, ControlError};
pub use files::LinkFiles;
pub use message::{Changes, LogLevel, Reloaded, Request, Response, Set};
pub use server::Server;
pub use status::{
    Carried, Cpu, DivertState, DivertStatus, EnteredStatus, EntryStatus, FrameCounts, Learned,
    LinkCpu, LinkPortStatus, MembershipStatus, PeerPath, PeerState, PeerStatus, Problem,
    RefusedEntry, RekeyStatus, RuleStatus, Status, TableStatus, UdpGso,
};
