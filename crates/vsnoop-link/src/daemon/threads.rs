//! The two threads that move frames, and when one of them is enough.
//!
//! Under load each has a half of the link for itself, and waits for it. But a thread that sleeps takes
//! long to wake, on a virtual machine longer than all the rest of a frame's way, and the longer the more
//! cores are asleep with it. So while there is little to do the ingress thread waits for both halves and
//! the egress thread sleeps: an answer that a VM gives at once is taken by who brought the question.
//! When more than a few frames wait at a time the work is divided, and united again after a moment in
//! which the egress thread had next to nothing to do.
//!
//! Who wakes this thread is mostly about to sleep itself, and was put off by the waking. It is let to do
//! that first: then the core has one thread that runs, and the kernel wakes the next on a frame's way on
//! this core, not on one that sleeps. (Measured in docs/performance.md, "Links".)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::warn;

use super::egress::Egress;
use super::ingress::Ingress;
use super::io::poll::{Half, Poll, of_both};

/// More frames than these in a turn are a stream.
const FEW_FRAMES: usize = 4;
/// How long the egress thread looks at what it has to do.
const MOMENT: Duration = Duration::from_millis(20);
/// It is not needed for fewer frames than these in a moment.
const WORTH_FRAMES: usize = 64;
/// The token of the bell among those of the ingress half.
const BELL: u64 = u64::MAX;

/// Both halves of a link, and who works on them.
pub struct Crew {
    both: Arc<Poll>,
    egress: Mutex<Egress>,
    ingress: Mutex<Ingress>,
    /// The egress thread has its half. Set by the ingress thread, cleared by the egress thread.
    divided: AtomicBool,
    /// The egress half was told to stop.
    over: AtomicBool,
    egress_thread: Mutex<Option<Thread>>,
    /// Calls the ingress thread when the work is united again.
    bell: EventFd,
}

impl Crew {
    /// `both` is where the halves are watched together.
    pub fn new(both: Arc<Poll>, egress: Egress, ingress: Ingress) -> std::io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        ingress.poll().watch(&bell, BELL)?;
        Ok(Self {
            both,
            egress: Mutex::new(egress),
            ingress: Mutex::new(ingress),
            divided: AtomicBool::new(false),
            over: AtomicBool::new(false),
            egress_thread: Mutex::new(None),
            bell,
        })
    }

    /// From ports to peers while the work is divided, until it is told to stop.
    pub fn run_egress(&self) {
        *lock(&self.egress_thread) = Some(std::thread::current());
        let poll = lock(&self.egress).poll();
        loop {
            while !self.divided.load(Ordering::Acquire) {
                if self.over.load(Ordering::Acquire) {
                    return;
                }
                std::thread::park();
            }
            let (mut since, mut frames) = (Instant::now(), 0);
            loop {
                let ready = wait(&poll, Some(MOMENT));
                let mut half = lock(&self.egress);
                if !ready.into_iter().all(|token| half.handle(token)) {
                    return;
                }
                frames += half.take_count();
                drop(half);
                if since.elapsed() < MOMENT {
                    continue;
                }
                if frames < WORTH_FRAMES {
                    break;
                }
                (since, frames) = (Instant::now(), 0);
            }
            self.divided.store(false, Ordering::Release);
            // It fails only when the counter is full; then it rings already.
            let _ = self.bell.write(1);
        }
    }

    /// From peers to ports, and while there is little to do the other way too, until it is told to stop.
    pub fn run_ingress(&self) {
        let poll = lock(&self.ingress).poll();
        loop {
            if self.divided.load(Ordering::Acquire) || self.over.load(Ordering::Acquire) {
                let ready = wait(&poll, None);
                let mut half = lock(&self.ingress);
                for token in ready {
                    if token == BELL {
                        let _ = self.bell.read();
                    } else if !half.handle(token) {
                        return;
                    }
                }
            } else if !self.both_halves() {
                return;
            }
        }
    }

    /// One turn of one thread with both halves; `false`: to stop.
    fn both_halves(&self) -> bool {
        let ready = wait(&self.both, None);
        std::thread::yield_now();
        let (mut egress, mut ingress) = (lock(&self.egress), lock(&self.ingress));
        for token in ready {
            match of_both(token) {
                (Half::Ingress, token) => {
                    if !ingress.handle(token) {
                        return false;
                    }
                }
                (Half::Egress, token) => {
                    if !egress.handle(token) {
                        self.over.store(true, Ordering::Release);
                        self.call();
                        return true;
                    }
                }
            }
        }
        if egress.take_count() + ingress.take_count() > FEW_FRAMES {
            self.divided.store(true, Ordering::Release);
            self.call();
        }
        true
    }

    /// Wakes the egress thread.
    fn call(&self) {
        if let Some(thread) = &*lock(&self.egress_thread) {
            thread.unpark();
        }
    }
}

fn wait(poll: &Poll, timeout: Option<Duration>) -> Vec<u64> {
    poll.wait(timeout).unwrap_or_else(|error| {
        warn!("waiting for frames: {error}");
        // Whatever it is, it is not made better by asking as fast as possible.
        std::thread::sleep(Duration::from_millis(10));
        Vec::new()
    })
}

/// A thread that panicked ends the link; until then the other goes on.
fn lock<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}
