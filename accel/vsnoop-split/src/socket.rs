//! A socket of a split connection.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::option::{Plain, REPAIR, SocketOption, get, set};

/// Values of TCP_REPAIR.
#[derive(Clone, Copy)]
pub enum Repair {
    On = 1,
    /// Without a window probe, which the remote end would answer.
    Off = -1,
    OffWithProbe = 0,
}

/// A socket that faces an end of the connection.
#[derive(Debug)]
pub struct Socket {
    pub inner: socket2::Socket,
}

impl Socket {
    pub fn new(inner: socket2::Socket) -> Self {
        Self { inner }
    }

    pub fn get<T: Plain>(&self, option: SocketOption) -> io::Result<T> {
        get(self.as_fd(), option)
    }

    pub fn set<T>(&self, option: SocketOption, value: &T) -> io::Result<()> {
        set(self.as_fd(), option, value)
    }

    pub fn repair(&self, repair: Repair) -> io::Result<()> {
        self.set(REPAIR, &(repair as libc::c_int))
    }

    /// Ends the connection at once by a RST, also if another process has the descriptor, too. In
    /// repair mode without a segment.
    pub fn disconnect(&self) -> io::Result<()> {
        // SAFETY: all fields are plain integers, for which zero is a valid value; AF_UNSPEC is 0.
        let nowhere: libc::sockaddr = unsafe { zeroed() };
        let length = size_of::<libc::sockaddr>() as libc::socklen_t;
        // SAFETY: the descriptor is open; the address is live and as long as is said.
        let result = unsafe { libc::connect(self.inner.as_raw_fd(), &raw const nowhere, length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

pub fn integer(bytes: u32) -> libc::c_int {
    libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl From<OwnedFd> for Socket {
    fn from(descriptor: OwnedFd) -> Self {
        Self::new(descriptor.into())
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.inner.into()
    }
}
