//! Talking to a running link: a Unix socket, one JSON line each way per connection.
//!
//! `message` has what is said, `server` is the link's end, `client` the command's, and `files`
//! knows the files: `/run/vsnoop/link/NAME.sock`, and NAME.lock, which the link holds while it
//! lives, which distinguishes the socket of a killed link from that of a running one.

mod client;
mod error;
mod files;
mod message;
mod server;

pub use client::{AskError, ask, running};
pub use error::{AlreadyUp, ControlError};
pub use files::LinkFiles;
pub use message::{
    Carried, Changes, Cpu, DivertState, DivertStatus, EnteredStatus, EntryStatus, FrameCounts,
    Learned, LinkCpu, LinkPortStatus, LogLevel, MembershipStatus, PeerPath, PeerState, PeerStatus,
    Problem, RefusedEntry, RekeyStatus, Reloaded, Request, Response, RuleStatus, Set, Status,
    TableStatus, UdpGso,
};
pub use server::Server;
