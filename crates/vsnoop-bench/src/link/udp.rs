//! Many datagrams in one call: UDP_SEGMENT to send, UDP_GRO to receive.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg, setsockopt, sockopt,
};

/// The most that one receive returns.
pub const BUFFER_BYTES: usize = 1 << 16;

/// Datagrams of one flow are received together, and a receive waits at most for `timeout`.
pub fn prepare(socket: &UdpSocket, timeout: Option<Duration>) -> Result<()> {
    setsockopt(socket, sockopt::UdpGroSegment, &true).context("set UDP_GRO")?;
    socket.set_read_timeout(timeout).context("set SO_RCVTIMEO")
}

/// Sends `bytes`, cut into datagrams of `segment_bytes`, to where the socket is connected. What a
/// full or a closed socket does not take is lost, as on any network.
pub fn send(socket: &UdpSocket, bytes: &[u8], segment_bytes: usize) -> Result<()> {
    let size = u16::try_from(segment_bytes).context("a datagram of 64 KB or more")?;
    let segments = [ControlMessage::UdpGsoSegments(&size)];
    let control = if bytes.len() > segment_bytes { &segments[..] } else { &[] };
    let bytes = [IoSlice::new(bytes)];
    match sendmsg::<()>(socket.as_raw_fd(), &bytes, control, MsgFlags::empty(), None) {
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => Ok(()),
        Err(error) => Err(error).context("send datagrams"),
    }
}

/// Receives datagrams into `buffer`: their bytes, and the size of each but the last, which may be
/// shorter. None when nothing came in time.
pub fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<(usize, usize)>> {
    let mut control = nix::cmsg_space!(i32);
    let mut slices = [IoSliceMut::new(buffer)];
    let received =
        recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty());
    let message = match received {
        Ok(message) => message,
        // A connected socket is refused when the other end has closed its own at the end of a round.
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => return Ok(None),
        Err(error) => return Err(error).context("receive datagrams"),
    };
    let bytes = message.bytes;
    let mut segment_bytes = bytes;
    for control in message.cmsgs().context("read control messages")? {
        if let ControlMessageOwned::UdpGroSegments(size) = control {
            segment_bytes = usize::try_from(size).unwrap_or(bytes);
        }
    }
    Ok(Some((bytes, segment_bytes.max(1))))
}
