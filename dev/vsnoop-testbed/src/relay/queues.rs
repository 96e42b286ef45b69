//! One side of a relay: the queues of its tap.
//!
//! A tap with several queues has a descriptor for each. Frames are read from one queue after the
//! other, as a guest's CPUs serve them each in its own time, and written to them in turn: the
//! kernel sends later frames of a connection to the queue that its last frame came from, so that
//! connections move between queues all the time and their frames overtake each other.
//!
//! A queue can be disabled, as a guest does that has fewer CPUs now; the kernel then frees what was
//! in it, gives it nothing more, and refuses to read or write it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vsnoop_netdev::tap::Tap;
use vsnoop_packet::packet::Packet;

nix::ioctl_write_ptr!(tunsetqueue, b'T', 217, libc::c_int);

/// All queues of one tap.
#[derive(Debug)]
pub(super) struct Queues {
    queues: Vec<Queue>,
    /// Counts writes, to take turns.
    writes: AtomicUsize,
}

#[derive(Debug)]
struct Queue {
    tap: Tap,
    enabled: AtomicBool,
}

impl Queues {
    pub fn new(taps: Vec<Tap>) -> Self {
        let queue = |tap| Queue { tap, enabled: AtomicBool::new(true) };
        Self { queues: taps.into_iter().map(queue).collect(), writes: AtomicUsize::new(0) }
    }

    pub fn name(&self) -> &str {
        self.queues.first().map_or("", |queue| queue.tap.name())
    }

    pub fn count(&self) -> usize {
        self.queues.len()
    }

    /// Reads a frame of one queue; `false` when none is waiting there, or the queue is disabled.
    pub fn read(&self, number: usize, packet: &mut Packet) -> io::Result<bool> {
        let queue = &self.queues[number];
        if !queue.is_enabled() {
            return Ok(false);
        }
        match queue.tap.read(packet) {
            // Disabled between the look and the read.
            Err(_) if !queue.is_enabled() => Ok(false),
            result => result,
        }
    }

    /// Writes a frame to the enabled queue whose turn it is.
    pub fn write(&self, packet: &Packet) -> io::Result<bool> {
        let turn = self.writes.fetch_add(1, Ordering::Relaxed);
        let enabled = || self.queues.iter().filter(|queue| queue.is_enabled());
        match enabled().nth(turn % enabled().count().max(1)) {
            Some(queue) => queue.tap.write(packet),
            None => Ok(false),
        }
    }

    /// Enables or disables a queue in the kernel.
    pub fn set_enabled(&self, number: usize, enabled: bool) -> Result<()> {
        let queue = &self.queues[number];
        // SAFETY: ifreq is plain old data for which all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let flag = if enabled { libc::IFF_ATTACH_QUEUE } else { libc::IFF_DETACH_QUEUE };
        request.ifr_ifru.ifru_flags = flag as libc::c_short;
        if !enabled {
            queue.enabled.store(false, Ordering::Release);
        }
        // SAFETY: the descriptor is an open tap, and the call reads one ifreq, which lives on.
        unsafe { tunsetqueue(queue.tap.as_fd().as_raw_fd(), (&raw const request).cast()) }
            .with_context(|| {
                let name = self.name();
                format!("queue {number} of tap {name}: enabled {enabled} (TUNSETQUEUE)")
            })?;
        if enabled {
            queue.enabled.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether frames wait in a queue.
    pub fn is_waiting(&self, number: usize) -> Result<bool> {
        let queue = &self.queues[number];
        let mut fds = [PollFd::new(queue.tap.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).context("polling a queue of a tap")?;
        Ok(queue.is_enabled()
            && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)))
    }

    /// The descriptors to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().filter(|queue| queue.is_enabled()).map(|queue| queue.tap.as_fd())
    }
}

impl Queue {
    fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }
}
