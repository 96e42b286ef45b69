//! The description of a connection that is to be split.

use std::net::SocketAddr;
use std::ops::Not;

/// An open connection: what each of its ends has said and sent.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    pub vm: End<'a>,
    pub peer: End<'a>,
    /// Both offered SACK.
    pub sack: bool,
    /// Both offered window scales (RFC 7323).
    pub scales: bool,
    /// Both offered timestamps (RFC 7323).
    pub timestamps: bool,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub address: SocketAddr,
    /// Its highest ACK: SEQ of the first byte that it has not acknowledged.
    pub ack: u32,
    /// Bytes behind `ack` that it has ever allowed to be sent: its receive window.
    pub window_bytes: u32,
    /// The receive window that the other end was shown, by this end or for it, if that is more.
    pub shown_bytes: u32,
    /// Bytes that this end has sent and the other end has not acknowledged, from the other end's
    /// `ack` on.
    pub in_flight: &'a [u8],
    /// Value of its MSS option.
    pub mss: u16,
    /// Shift count of its window scale option.
    pub scale: u8,
    /// Its last TSval, where the TSvals of the socket in its place begin.
    pub tsval: u32,
}

/// How the sockets are made.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The device that leads to both ends (SO_BINDTODEVICE).
    pub device: &'a str,
    /// Congestion control of the socket that faces the peer; `None`: the host's default.
    pub congestion_control: Option<&'a str>,
    /// Most bytes that each socket has in flight.
    pub send_bytes: u32,
    /// How far the VM may be ahead of what the peer was sent, and the peer's receive window.
    pub receive_bytes: u32,
}

impl Default for Settings<'_> {
    /// Buffers of 4 MiB, no device.
    fn default() -> Self {
        Self { device: "", congestion_control: None, send_bytes: 4 << 20, receive_bytes: 4 << 20 }
    }
}

impl<'a> Connection<'a> {
    pub(crate) fn end(&self, side: Side) -> &End<'a> {
        match side {
            Side::Vm => &self.vm,
            Side::Peer => &self.peer,
        }
    }
}

/// An end of the connection, and the socket that faces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Vm,
    Peer,
}

impl Not for Side {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::Vm => Self::Peer,
            Self::Peer => Self::Vm,
        }
    }
}

/// A direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToPeer,
    ToVm,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::ToPeer, Self::ToVm];

    /// The end that gets the bytes.
    pub fn sink(self) -> Side {
        match self {
            Self::ToPeer => Side::Peer,
            Self::ToVm => Side::Vm,
        }
    }

    /// The end that sends them.
    pub fn source(self) -> Side {
        !self.sink()
    }
}
