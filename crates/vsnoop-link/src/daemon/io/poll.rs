//! Waiting for several descriptors: epoll, level-triggered, a token for each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

const EVENTS: usize = 64;

/// What a thread waits for. Others may change what is watched meanwhile.
pub struct Poll {
    epoll: Epoll,
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll })
    }

    /// Starts to watch a descriptor: whether it can be read, or has ended.
    pub fn watch(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Whether to tell when a watched writer has room.
    pub fn want_room(&self, fd: impl AsFd, token: u64, wanted: bool) -> io::Result<()> {
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, wanted);
        Ok(self.epoll.modify(fd, &mut EpollEvent::new(flags, token))?)
    }

    pub fn forget(&self, fd: BorrowedFd<'_>) {
        // It may be gone already.
        let _ = self.epoll.delete(fd);
    }

    /// Tokens of what is ready, after at most `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<u64>> {
        let timeout = match timeout {
            None => EpollTimeout::NONE,
            // Rounded up: a deadline that has not come yet must not spin.
            Some(time) => {
                EpollTimeout::try_from(time.as_micros().div_ceil(1000).min(60_000) as i32)
                    .unwrap_or(EpollTimeout::NONE)
            }
        };
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(nix::Error::EINTR) => 0,
            other => other?,
        };
        Ok(events[..count].iter().map(EpollEvent::data).collect())
    }
}
