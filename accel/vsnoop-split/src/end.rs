//! The operations that a split connection needs of its sockets and pipes: the kernel's
//! ([`Socket`]), or simulated ones.
//!
//! [`Socket`]: crate::socket::Socket

use std::fmt::Debug;
use std::io;

use crate::Result;
use crate::connection::{Connection, Settings, Side};
use crate::info::Info;

/// A queue of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Received,
    Sent,
}

/// A TCP socket that faces an end of a connection, and stands in the place of the other.
pub trait Facing: Debug + Sized {
    type Pipe: Debug;

    /// Makes the socket that faces `side`. It has sent what the other end has in flight, received
    /// what `side` has in flight, and nothing of that has been read.
    fn restore(side: Side, connection: &Connection, settings: &Settings) -> Result<Self>;

    fn pipe() -> io::Result<Self::Pipe>;

    /// Bytes in a pipe.
    fn held(pipe: &Self::Pipe) -> io::Result<usize>;

    /// Moves up to `bytes` from the socket into the pipe, and none if it would block. Returns how
    /// many; 0 behind the remote end's FIN.
    fn fill(&self, pipe: &Self::Pipe, bytes: usize) -> io::Result<usize>;

    /// Moves up to `bytes` from the pipe to the socket, and none if it would block.
    fn drain(&self, pipe: &Self::Pipe, bytes: usize) -> io::Result<usize>;

    fn info(&self) -> io::Result<Info>;

    /// Bytes that can be read.
    fn unread(&self) -> io::Result<usize>;

    /// Bytes that the remote end has not acknowledged, a FIN among them.
    fn unacknowledged(&self) -> io::Result<usize>;

    /// Bytes of memory behind what was received, also out of order.
    fn received_memory(&self) -> io::Result<u32>;

    /// Why the socket was closed, if it was.
    fn reason_of_end(&self) -> io::Result<Option<io::Error>>;

    /// TSval of a segment that is sent now, in milliseconds.
    fn clock(&self) -> io::Result<u32>;

    /// Reads up to `bytes` that were received, and throws them away. Returns how many there were.
    fn discard(&self, bytes: usize) -> io::Result<usize>;

    /// Passes the next byte on as urgent, if it is.
    fn pass_urgent(&self, sink: &Self) -> io::Result<bool>;

    /// Sends a FIN behind the last byte.
    fn finish(&self) -> io::Result<()>;

    /// RCV.NXT, or SEQ behind all that is queued to be sent.
    fn queue_seq(&self, queue: Queue) -> io::Result<u32>;

    /// Sends a window probe, which the remote end answers.
    fn ask_for_window(&self) -> io::Result<()>;

    /// The largest window to be shown, and the memory for what is received, bytes.
    fn limit_received(&self, window: u32, memory: u32) -> io::Result<()>;

    /// Most bytes that are queued and cannot be sent yet.
    fn limit_unsent(&self, bytes: u32) -> io::Result<()>;

    /// Ends the connection at once by a RST.
    fn reset(&self) -> io::Result<()>;

    /// Ends the connection here without a segment.
    fn close_silently(&self) -> io::Result<()>;
}
