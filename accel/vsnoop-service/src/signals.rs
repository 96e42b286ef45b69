//! Signals as events: SIGHUP reloads, SIGTERM and SIGINT end the service, SIGCHLD tells that the
//! helper has ended.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use crate::error::{Error, Result};

pub struct Signals {
    /// Readable after any of them.
    pipe: UnixStream,
    write: UnixStream,
    reload: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
}

impl Signals {
    pub fn catch() -> Result<Self> {
        let (pipe, write) = UnixStream::pair().map_err(Error::Signals)?;
        // Who wakes the loop up never waits for it.
        for end in [&pipe, &write] {
            end.set_nonblocking(true).map_err(Error::Signals)?;
        }
        let (reload, end) = (Arc::default(), Arc::default());
        // Flags first: who is woken up finds them set.
        for (signal, set) in [(SIGHUP, &reload), (SIGTERM, &end), (SIGINT, &end)] {
            flag::register(signal, Arc::clone(set)).map_err(Error::Signals)?;
        }
        for signal in [SIGHUP, SIGTERM, SIGINT, SIGCHLD] {
            let write = write.try_clone().map_err(Error::Signals)?;
            pipe::register(signal, write).map_err(Error::Signals)?;
        }
        Ok(Self { pipe, write, reload, end })
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// A byte that is written to it wakes the loop up as a signal does.
    pub fn waker(&self) -> Result<UnixStream> {
        self.write.try_clone().map_err(Error::Signals)
    }

    /// Empties the pipe.
    pub fn take(&self) {
        let mut bytes = [0; 64];
        while (&self.pipe).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
    }

    pub fn is_end(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    /// Once for each SIGHUP, or for several at once.
    pub fn is_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }
}
