//! The connections that the keeper has.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message::{Incoming, Kept, Message, receive, send_ready};

/// How long a splitter may take to read what was kept.
const PATIENCE: Duration = Duration::from_secs(10);
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// The connections that are kept, by their numbers.
#[derive(Debug)]
pub struct Store {
    kept: BTreeMap<u64, Kept>,
    room: usize,
}

impl Store {
    /// `room`: how many connections it keeps at most.
    pub fn new(room: usize) -> Self {
        Self { kept: BTreeMap::new(), room }
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// Hands all to a splitter, and does what it says until it is gone, or `is_over`.
    pub fn serve_splitter(
        &mut self,
        splitter: BorrowedFd,
        is_over: impl Fn() -> bool,
    ) -> Result<(), Errno> {
        self.hand_over(splitter)?;
        while !is_over() {
            if !wait_for(splitter, PollFlags::POLLIN)? {
                continue;
            }
            match receive(splitter)? {
                Incoming::Message(message) => self.take_message(message),
                Incoming::Nothing => {}
                Incoming::End => break,
            }
        }
        Ok(())
    }

    fn hand_over(&self, splitter: BorrowedFd) -> Result<(), Errno> {
        let until = Instant::now() + PATIENCE;
        for kept in self.kept.values() {
            send_patiently(until, || kept.send(splitter))?;
        }
        send_patiently(until, || send_ready(splitter, self.room))
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Kept(kept) => {
                if self.kept.len() < self.room {
                    self.kept.insert(kept.id, kept);
                }
            }
            // The splitter has ended it.
            Message::Forget(id) => drop(self.kept.remove(&id)),
            Message::Ready { .. } => {}
        }
    }
}

/// Tries until there is room in the socket, and among the descriptors that are on their way.
fn send_patiently(until: Instant, send: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match send() {
            Err(Errno::EAGAIN | Errno::ETOOMANYREFS | Errno::EINTR) if Instant::now() < until => {
                thread::sleep(TRY_AGAIN);
            }
            result => return result,
        }
    }
}

/// Waits a second at most. A signal ends it.
pub fn wait_for(socket: BorrowedFd, flags: PollFlags) -> Result<bool, Errno> {
    const SECOND: u16 = 1000;
    match poll(&mut [PollFd::new(socket.as_fd(), flags)], PollTimeout::from(SECOND)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}
