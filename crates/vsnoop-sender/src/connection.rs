//! What a socket has to know of the connection that it sends for.

use std::net::SocketAddr;

/// A connection, as its record has it.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    pub vm: SocketAddr,
    pub peer: SocketAddr,
    /// SEQ of the first byte that the peer has not acknowledged.
    pub snd_una: u32,
    /// The bytes from there on that have left.
    pub in_flight: &'a [u8],
    /// SEQ that ACKs for the socket will have.
    pub rcv_nxt: u32,
    /// The peer's window, in bytes.
    pub window_bytes: u32,
    /// The peer's MSS option.
    pub mss: u16,
    /// If both ends offered window scaling.
    pub scales: Option<Scales>,
    pub sack: bool,
    pub timestamps: Timestamps,
    /// The host's default if there is none.
    pub congestion_control: Option<&'a str>,
    /// Bytes that the socket may hold.
    pub buffer_bytes: u32,
}

/// Window scales, RFC 7323.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    pub vm: u8,
    pub peer: u8,
}

/// RFC 7323 timestamps of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    Off,
    /// TSval of the socket's segments when it is made, in milliseconds.
    From(u32),
}
