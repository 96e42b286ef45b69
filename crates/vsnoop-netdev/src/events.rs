//! Says when devices come, change or go, without polling: the kernel's notifications of links.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::netlink::Error;

/// RTNLGRP_LINK as a bit of `nl_groups` (include/uapi/linux/rtnetlink.h).
const LINKS: u32 = 1;
/// The kernel cuts notifications at this size or less.
const BUFFER_BYTES: usize = 32 << 10;

/// Notifications of the network namespace in which it was made; it keeps that alive.
pub struct LinkEvents {
    socket: Socket,
}

impl LinkEvents {
    /// Of the calling thread's network namespace, from now on.
    pub fn listen() -> Result<Self, Error> {
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(Error::Open)?;
        socket.bind(&SocketAddr::new(0, LINKS)).map_err(Error::Bind)?;
        socket.set_non_blocking(true).map_err(Error::Open)?;
        Ok(Self { socket })
    }

    /// Takes all notifications that have arrived; was there one? Which devices they concern is not
    /// said: the caller looks at all of them, because notifications may have been lost.
    pub fn take(&self) -> Result<bool, Error> {
        let mut has_any = false;
        loop {
            let mut buffer = Vec::with_capacity(BUFFER_BYTES);
            match self.socket.recv_from(&mut buffer, 0) {
                Ok(_) => has_any = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(has_any),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Some were lost.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => has_any = true,
                Err(error) => return Err(Error::Receive(error)),
            }
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `self`, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }
}
