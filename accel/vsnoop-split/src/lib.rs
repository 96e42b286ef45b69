//! Split connections (RFC 3135): each end talks to a socket of its own, and bytes are moved between
//! both.
//!
//! ```text
//! VM <--TCP--> VM socket <==pipe, splice==> peer socket <--TCP--> peer
//! ```
//!
//! A [`Split`] is made in the middle of a connection: its sockets have the numbers, options and
//! windows of the connection (TCP_REPAIR). One has sent, and the other has received, what was in
//! flight. Congestion control, loss recovery and timers are the kernel's. Byte n of one side is
//! byte n of the other, so that a connection on which both sockets are empty can be joined again.
//!
//! Others lead the segments of both ends to the sockets, and those of the sockets to the ends.
//!
//! Needs CAP_NET_ADMIN in the network namespace of the calling thread, where the sockets stay. With
//! `net.ipv4.tcp_max_tw_buckets` = 0 there, a connection can follow at once on another of the same
//! ports; else its socket is refused ([`Error::Connect`]) as long as one is in TIME-WAIT. SIGPIPE
//! has to be ignored, as Rust's runtime does.

mod ahead;
mod connection;
mod diag;
mod end;
mod info;
mod kernel;
mod option;
mod parts;
mod pipe;
mod pump;
mod restore;
mod socket;
mod split;

pub use ahead::Ahead;
pub use connection::{Connection, Direction, End, Settings, Side};
pub use diag::{Diagnosed, diagnose};
pub use end::{Facing, Queue};
pub use info::{Info, State};
pub use parts::{PARTS, parts_of};
pub use pipe::Pipe;
pub use pump::{Broken, Moved, Waits, Why};
pub use socket::Socket;
pub use split::{Pair, Parts, Split};

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The connection is not split.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("open a TCP socket")]
    Open(#[source] std::io::Error),
    #[error("open a pipe")]
    Pipe(#[source] std::io::Error),
    #[error("set the socket option {option} of a restored socket")]
    Set { option: &'static str, source: std::io::Error },
    #[error("bind a restored socket to the device {device}")]
    Device { device: String, source: std::io::Error },
    #[error("the kernel has no congestion control {name}")]
    CongestionControl { name: String, source: std::io::Error },
    #[error("bind a restored socket to the address of an end")]
    Bind(#[source] std::io::Error),
    #[error("connect a restored socket to an end")]
    Connect(#[source] std::io::Error),
    #[error("queue the bytes that are in flight")]
    InFlight(#[source] std::io::Error),
    #[error("take up the sockets of a split connection")]
    TakeUp(#[source] std::io::Error),
    #[error("{bytes} bytes that came from the {from:?} are lost between the sockets")]
    Missing { from: Side, bytes: u32 },
}
