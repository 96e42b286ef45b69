//! Messages to a thread that waits in epoll: a channel, and an eventfd that wakes it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc;

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The sending side; clones share it.
pub struct Sender<T> {
    channel: mpsc::Sender<T>,
    bell: Arc<EventFd>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { channel: self.channel.clone(), bell: self.bell.clone() }
    }
}

/// The receiving side: its descriptor is readable while there may be messages.
pub struct Receiver<T> {
    channel: mpsc::Receiver<T>,
    bell: Arc<EventFd>,
}

pub fn channel<T>() -> std::io::Result<(Sender<T>, Receiver<T>)> {
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let (sender, receiver) = mpsc::channel();
    Ok((Sender { channel: sender, bell: bell.clone() }, Receiver { channel: receiver, bell }))
}

impl<T> Sender<T> {
    /// `false`: the thread is gone.
    pub fn send(&self, message: T) -> bool {
        let sent = self.channel.send(message).is_ok();
        // It fails only when the counter is full; then the receiver is awake already.
        let _ = self.bell.write(1);
        sent
    }
}

impl<T> Receiver<T> {
    /// All messages that are there.
    pub fn drain(&self) -> impl Iterator<Item = T> + '_ {
        // Nothing rang since: fine too.
        let _ = self.bell.read();
        self.channel.try_iter()
    }
}

impl<T> AsFd for Receiver<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
