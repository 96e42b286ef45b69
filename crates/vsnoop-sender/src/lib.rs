//! Sockets of the kernel that take over the sending side of a connection (decision 46).
//!
//! A [`Sender`] is made by TCP_REPAIR with the numbers of a connection that others began: with what
//! is in flight already sent, from SND.UNA on. Congestion control, loss recovery, timers and pacing
//! are then the kernel's. What the socket sends, and the ACKs that it is given, pass others, who
//! put the connection's ACK, window and timestamps into them; a sender sees a connection on which
//! nothing comes but ACKs.
//!
//! A sender is not what safety rests on. Dropped, it sends nothing, and another can be made from a
//! copy of the bytes. If a segment of the former one leaves after that, the peer acknowledges bytes
//! that the new socket has not sent. Linux ignores such an ACK and all that follow:
//! [`Sender::is_behind`] tells.
//!
//! Needs CAP_NET_ADMIN in the network namespace of the calling thread, where the socket stays.

mod connection;
mod option;
mod sender;

pub use connection::{Connection, Scales, Timestamps};
pub use sender::Sender;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// The kernel makes no socket for the connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("open a TCP socket")]
    Open(#[source] std::io::Error),
    #[error("set the socket option {option} of a restored socket")]
    Set { option: &'static str, source: std::io::Error },
    #[error("the kernel has no congestion control {name}")]
    CongestionControl { name: String, source: std::io::Error },
    #[error("bind a restored socket to the VM's address")]
    Bind(#[source] std::io::Error),
    #[error("connect a restored socket to the peer")]
    Connect(#[source] std::io::Error),
    #[error("queue the bytes that are in flight")]
    InFlight(#[source] std::io::Error),
}
