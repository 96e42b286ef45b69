//! A user-space device between two taps: it stands for a VM's network card, or for a network.
//!
//! Frames that the kernel sends out of one tap are written to the other, both ways, by one thread.
//! The offloads of a tap's reader (super-packets, partial checksums) are set on the tap
//! ([`Offloads`](super::net::Offloads)); what it gets is handed on with its `virtio_net_hdr`. Each
//! direction has its own [`Faults`], changeable at any time, drawn from a seeded generator, and its
//! own [`Counters`]; a [`Bottleneck`] makes it a link with a rate and a queue. A side may carry
//! VLAN tags: frames from it must have them and lose them, frames to it get them. A tap may have
//! several queues ([`queues`]).
//!
//! A relay behind the attached tap has the faults of a guest: what it loses, vsnoop may already
//! have acknowledged. One before the bridge has the faults of a network: nothing there may ever
//! show in a byte stream.

mod bottleneck;
mod control;
mod counters;
mod faults;
mod forgery;
mod forwarder;
mod queues;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use vsnoop_netdev::tap::{Tap, TapOptions};
use vsnoop_packet::format::Tag;

use crate::net::Netns;

pub use bottleneck::Bottleneck;
use control::Control;
pub use counters::Counters;
pub use faults::{Faults, Freeze};
use forwarder::{Forwarder, Next};
use queues::Queues;

/// One of the two directions between the taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    LeftToRight,
    RightToLeft,
}

/// How a relay starts.
#[derive(Clone, Debug, Default)]
pub struct RelayOptions {
    pub seed: u64,
    /// Tags on the left side, outermost first.
    pub left_tags: Vec<Tag>,
    pub right_tags: Vec<Tag>,
    /// The thread goes before all ordinary ones, so that delays are as long as they were meant to
    /// be.
    pub realtime: bool,
}

/// A running relay; it stops, and its taps close, when this is dropped.
#[derive(Debug)]
pub struct Relay {
    left: Arc<Queues>,
    forwarders: [Arc<Control>; 2],
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    wake: EventFd,
}

impl Netns {
    /// Joins the two namespaces by a relay between a tap of each; both are down at first.
    pub fn relay(
        &self,
        name: &str,
        peer: &Netns,
        peer_name: &str,
        taps: &TapOptions,
        options: &RelayOptions,
    ) -> Result<Relay> {
        Relay::start(vec![self.tap(name, taps)?], peer.tap(peer_name, taps)?, options)
    }
}

impl Relay {
    /// Starts moving frames between two taps (opened `nonblocking`, with a `virtio_net_hdr` each);
    /// of the left one all queues.
    pub fn start(left: Vec<Tap>, right: Tap, options: &RelayOptions) -> Result<Self> {
        let left = Arc::new(Queues::new(left));
        let right = Queues::new(vec![right]);
        let controls: [Arc<Control>; 2] = Default::default();
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            wake: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
                .context("making an eventfd for a relay")?,
        });
        let (left_tags, right_tags) = (&options.left_tags, &options.right_tags);
        let mut forwarders = [
            Forwarder::new(controls[0].clone(), left_tags, right_tags, options.seed),
            Forwarder::new(controls[1].clone(), right_tags, left_tags, !options.seed),
        ];
        let name = format!("relay {}", left.name());
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn({
                let (shared, left) = (shared.clone(), left.clone());
                let realtime = options.realtime;
                move || {
                    if realtime && let Err(error) = become_realtime() {
                        tracing::warn!("delays will be longer than asked for: {error:#}");
                    }
                    // A tap that its namespace took down under us is the end of the relay, not a
                    // fault.
                    if let Err(error) = work(&shared, &left, &right, &mut forwarders) {
                        tracing::debug!("relay between {left:?} and {right:?} ended: {error:#}");
                    }
                }
            })
            .context("starting a relay's thread")?;
        Ok(Self { left, forwarders: controls, shared, thread: Some(thread) })
    }

    /// Changes the faults of one direction: the next frames have them when this returns.
    pub fn set_faults(&self, direction: Direction, faults: Faults) {
        self.forwarders[direction as usize].set(faults);
        self.until_obeyed();
    }

    /// Changes only when both directions stand still, as a VM does that does not run. With
    /// [`Freeze::Now`] no frame moves after this returns.
    pub fn set_freeze(&self, freeze: Freeze) {
        for forwarder in &self.forwarders {
            let faults = forwarder.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
            forwarder.set(Faults { freeze, ..faults });
        }
        self.until_obeyed();
    }

    /// Wakes the thread, and waits until it has taken all changes, or has ended.
    fn until_obeyed(&self) {
        self.wake();
        let ended = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        while !self.forwarders.iter().all(|forwarder| forwarder.is_obeyed()) && !ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Enables or disables a queue of the left tap, as a guest does.
    pub fn set_queue(&self, number: usize, enabled: bool) -> Result<()> {
        self.left.set_enabled(number, enabled)?;
        self.wake();
        Ok(())
    }

    /// Whether frames wait in a queue of the left tap.
    pub fn is_waiting(&self, queue: usize) -> Result<bool> {
        self.left.is_waiting(queue)
    }

    pub fn counters(&self, direction: Direction) -> Counters {
        self.forwarders[direction as usize].counters.read()
    }

    fn wake(&self) {
        // It can only fail when the counter is full, and then the thread is awake already.
        let _ = self.shared.wake.write(1);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("a relay's thread panicked");
        }
    }
}

/// Puts the calling thread under SCHED_FIFO.
fn become_realtime() -> Result<()> {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one sched_param, which lives on; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) };
    nix::Error::result(result).context("putting a relay's thread under SCHED_FIFO")?;
    Ok(())
}

fn work(
    shared: &Shared,
    left: &Queues,
    right: &Queues,
    forwarders: &mut [Forwarder; 2],
) -> Result<()> {
    while !shared.stop.load(Ordering::Acquire) {
        let rightward = forwarders[0].forward(left, right).context("reading the left tap")?;
        let leftward = forwarders[1].forward(right, left).context("reading the right tap")?;
        if !(rightward.busy || leftward.busy) {
            wait(shared, left, &rightward, right, &leftward)?;
        }
    }
    Ok(())
}

/// Sleeps until a tap has frames, something is due, or the owner wants something.
fn wait(
    shared: &Shared,
    left: &Queues,
    rightward: &Next,
    right: &Queues,
    leftward: &Next,
) -> Result<()> {
    let mut fds = vec![PollFd::new(shared.wake.as_fd(), PollFlags::POLLIN)];
    for (side, next) in [(left, rightward), (right, leftward)] {
        let interest = if next.readable { PollFlags::POLLIN } else { PollFlags::empty() };
        fds.extend(side.descriptors().map(|queue| PollFd::new(queue, interest)));
    }
    let timeout = [rightward.at, leftward.at]
        .into_iter()
        .flatten()
        .min()
        .map(|at| TimeSpec::from(at.saturating_duration_since(Instant::now())));
    match ppoll(&mut fds, timeout, None) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(error) => return Err(error).context("polling two taps"),
    }
    let gone = |fd: &PollFd| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLERR));
    if fds[1..].iter().any(gone) {
        // POLLERR comes with a device that is down or gone; reading tells which.
        std::thread::sleep(Duration::from_millis(1));
    }
    // Empties the eventfd; it may be empty already.
    let _ = shared.wake.read();
    Ok(())
}
