//! Notifications of the kernel about devices, of one group of rtnetlink.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::netlink::Error;

/// The kernel's notifications in the network namespace in which it was made; it keeps that alive.
pub struct Notifications {
    socket: Socket,
}

impl Notifications {
    /// Listens in the calling thread's network namespace, from now on. `group`: a bit of
    /// `nl_groups` (include/uapi/linux/rtnetlink.h).
    pub fn listen(group: u32) -> Result<Self, Error> {
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(Error::Open)?;
        socket.bind(&SocketAddr::new(0, group)).map_err(Error::Bind)?;
        socket.set_non_blocking(true).map_err(Error::Open)?;
        Ok(Self { socket })
    }

    /// Calls `hear` with each datagram that has arrived, up to `most` bytes of it. Returns whether
    /// the kernel has thrown some away.
    pub fn take(&self, most: usize, mut hear: impl FnMut(&[u8])) -> Result<bool, Error> {
        let mut are_lost = false;
        loop {
            let mut buffer = Vec::with_capacity(most);
            match self.socket.recv_from(&mut buffer, 0) {
                Ok(_) => hear(&buffer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(are_lost),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => are_lost = true,
                Err(error) => return Err(Error::Receive(error)),
            }
        }
    }
}

impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `self`, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }
}
