//! Says when devices come, change or go, without polling: the kernel's notifications of links.

use std::os::fd::{AsFd, BorrowedFd};

use crate::netlink::Error;
use crate::notifications::Notifications;

/// RTNLGRP_LINK.
const LINKS: u32 = 1;
/// The kernel cuts notifications at this size or less.
const BUFFER_BYTES: usize = 32 << 10;

/// Notifications of the network namespace in which it was made; it keeps that alive.
pub struct LinkEvents(Notifications);

impl LinkEvents {
    /// Listens in the calling thread's network namespace, from now on.
    pub fn listen() -> Result<Self, Error> {
        Notifications::listen(LINKS).map(Self)
    }

    /// Takes all notifications that have arrived; was there one? Which devices they concern is not
    /// said: the caller looks at all of them, because notifications may have been lost.
    pub fn take(&self) -> Result<bool, Error> {
        let mut has_any = false;
        let are_lost = self.0.take(BUFFER_BYTES, |_| has_any = true)?;
        Ok(has_any || are_lost)
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
