//! Sends an IP packet that another end seems to have sent (IP_HDRINCL), by the routes of the
//! calling thread's network namespace.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_int;

/// Bytes of the headers before the destination's address, and of the address.
const TO_V4: (usize, usize) = (16, 4);
const TO_V6: (usize, usize) = (24, 16);

/// An error: the packet has not left.
pub(crate) fn send(packet: &[u8]) -> io::Result<()> {
    let too_short = || io::Error::from(io::ErrorKind::InvalidInput);
    let is_v6 = packet.first().ok_or_else(too_short)? >> 4 == 6;
    let (at, length) = if is_v6 { TO_V6 } else { TO_V4 };
    let to = packet.get(at..at + length).ok_or_else(too_short)?;
    // SAFETY: an all-zero address is one.
    let (mut v4, mut v6): (libc::sockaddr_in, libc::sockaddr_in6) = unsafe { std::mem::zeroed() };
    let (address, size): (*const libc::sockaddr, usize) = if is_v6 {
        v6.sin6_family = libc::AF_INET6 as u16;
        v6.sin6_addr.s6_addr.copy_from_slice(to);
        ((&raw const v6).cast(), size_of_val(&v6))
    } else {
        v4.sin_family = libc::AF_INET as u16;
        v4.sin_addr.s_addr = u32::from_ne_bytes([to[0], to[1], to[2], to[3]]);
        ((&raw const v4).cast(), size_of_val(&v4))
    };
    let socket = open(if is_v6 { libc::AF_INET6 } else { libc::AF_INET })?;
    // SAFETY: a packet and an address with their true lengths, which outlive the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            libc::MSG_DONTWAIT,
            address,
            size as libc::socklen_t,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// With IPPROTO_RAW a socket sends packets with their headers, and receives none.
fn open(family: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd =
        unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, owned by this value alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
