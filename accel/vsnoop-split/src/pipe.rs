//! A pipe, through which splice(2) moves bytes from a socket to another without a copy.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::option::{UNREAD, ask};

/// Capacity that a pipe is asked to have; it has less if the kernel allows less (fs.pipe-max-size,
/// the user's soft limit).
const CAPACITY: libc::c_int = 1 << 20;

/// Both ends of a pipe.
#[derive(Debug)]
pub struct Pipe {
    pub read: OwnedFd,
    pub write: OwnedFd,
}

impl Pipe {
    pub fn new() -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
        for bytes in [CAPACITY, CAPACITY / 4] {
            // SAFETY: the descriptor is open; the argument is an int.
            if unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) } >= 0 {
                break;
            }
        }
        Ok(Self { read, write })
    }

    /// Bytes in the pipe.
    pub fn held(&self) -> io::Result<usize> {
        ask(self.read.as_fd(), UNREAD)
    }
}

/// Moves up to `bytes`, and none if it would block. Returns how many; 0 at the end of a socket.
pub fn splice(from: BorrowedFd, to: BorrowedFd, bytes: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are open, and have no offsets.
    let moved = unsafe { libc::splice(from.as_raw_fd(), none, to.as_raw_fd(), none, bytes, flags) };
    if moved < 0 { Err(io::Error::last_os_error()) } else { Ok(moved as usize) }
}
