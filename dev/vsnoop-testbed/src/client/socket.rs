//! A TCP socket with a chosen congestion control, and what the kernel knows about it.

use std::ffi::OsString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linux_raw_sys::net::tcp_info;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{SocketError, TcpCongestion};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect as connect_socket, getsockopt,
    setsockopt, socket,
};
use std::os::fd::AsFd;

/// linux/net_tstamp.h: report software timestamps, one number per byte of the stream, and the
/// timestamp without a copy of the data. Numbers count from the moment that this is set.
const REPORT: libc::c_uint = libc::SOF_TIMESTAMPING_SOFTWARE
    | libc::SOF_TIMESTAMPING_OPT_ID
    | libc::SOF_TIMESTAMPING_OPT_TSONLY
    | OPT_ID_TCP;
const OPT_ID_TCP: libc::c_uint = 1 << 16;

/// Connects with `congestion_control`, which is set before the handshake and verified.
pub fn connect(
    server: SocketAddr,
    congestion_control: &str,
    timeout: Duration,
) -> Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None).context("open a socket")?;
    setsockopt(&socket, TcpCongestion, &OsString::from(congestion_control))
        .with_context(|| format!("choose the congestion control {congestion_control}"))?;
    let chosen = getsockopt(&socket, TcpCongestion).context("read the congestion control")?;
    let chosen = chosen.to_string_lossy();
    ensure!(
        chosen.trim_end_matches('\0') == congestion_control,
        "the kernel chose the congestion control {chosen} instead of {congestion_control}"
    );
    match connect_socket(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
        Ok(()) => (),
        Err(nix::Error::EINPROGRESS) => finish(&socket, timeout)?,
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false).context("make the socket blocking")?;
    Ok(stream)
}

fn finish(socket: &OwnedFd, timeout: Duration) -> Result<()> {
    let milliseconds = u16::try_from(timeout.as_millis()).unwrap_or(u16::MAX);
    let mut wait = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut wait, PollTimeout::from(milliseconds)).context("wait for the handshake")? == 0 {
        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
    }
    match getsockopt(socket, SocketError).context("read the socket's error")? {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error).into()),
    }
}

/// Timestamps of what is sent from now on will be kept for the error queue, once asked for.
pub fn keep_transmit_timestamps(stream: &TcpStream) -> Result<()> {
    timestamping(stream, REPORT)
}

/// Asks for the time when the last byte of each later write is acknowledged.
pub fn stamp_acknowledgements(stream: &TcpStream) -> Result<()> {
    timestamping(stream, REPORT | libc::SOF_TIMESTAMPING_TX_ACK)
}

fn timestamping(stream: &TcpStream, flags: libc::c_uint) -> Result<()> {
    // SAFETY: the option reads one unsigned int, which lives on.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            size_of::<libc::c_uint>() as libc::socklen_t,
        )
    };
    nix::Error::result(result)
        .context("SO_TIMESTAMPING: does the kernel know OPT_ID_TCP (6.2)?")?;
    Ok(())
}

/// TCP_INFO; fields that an older kernel does not fill are 0.
pub fn info(stream: &TcpStream) -> Result<tcp_info> {
    let mut info = MaybeUninit::<tcp_info>::zeroed();
    let mut length = size_of::<tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `info`, which has that size.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    nix::Error::result(result).context("TCP_INFO")?;
    // SAFETY: tcp_info is plain integers, all of which are zero or written by the kernel.
    Ok(unsafe { info.assume_init() })
}
