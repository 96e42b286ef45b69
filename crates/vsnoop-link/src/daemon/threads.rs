//! The two threads that move frames, and how they help each other out.
//!
//! Each has its own half of the link and waits for it. But a thread that sleeps takes long to wake, on a
//! virtual machine longer than all the rest of a frame's way, and an answer often follows at once: what
//! the ingress thread has just given to a VM's stack may be answered before the call returns. So after
//! a few frames it looks itself at the ports whether there is an answer; and the egress thread, after
//! it has sent a few, looks for a moment at the socket. That moment is paid from a small budget of
//! time, so that links with much to do, or much to wait for, do not burn a processor.
//!
//! A half is locked by who works with it. Its own thread waits for the lock; the other only tries.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::egress::Egress;
use super::ingress::Ingress;
use super::io::poll::Poll;

/// More frames than these in a turn are a stream, whose answers come when they come.
const FEW_FRAMES: usize = 4;
/// How long an answer is waited for: a round trip of a local network.
const SPIN: Duration = Duration::from_micros(150);
/// Share of the time that may be spent so.
const SPIN_SHARE: u32 = 32;
/// What may be saved up.
const MOST_SAVED: Duration = Duration::from_millis(2);

/// From ports to peers, until it is told to stop.
pub fn run_egress(egress: &Mutex<Egress>, ingress: &Mutex<Ingress>) {
    let poll = lock(egress).poll();
    let mut budget = Budget::new();
    loop {
        let ready = wait(&poll);
        let mut half = lock(egress);
        if !ready.into_iter().all(|token| half.handle(token)) {
            return;
        }
        let frames = half.take_count();
        drop(half);
        if (1..=FEW_FRAMES).contains(&frames) {
            budget.spend(|| ingress.try_lock().is_ok_and(|mut half| half.look()));
        }
    }
}

/// From peers to ports, until it is told to stop.
pub fn run_ingress(ingress: &Mutex<Ingress>, egress: &Mutex<Egress>) {
    let poll = lock(ingress).poll();
    loop {
        let ready = wait(&poll);
        let mut half = lock(ingress);
        if !ready.into_iter().all(|token| half.handle(token)) {
            return;
        }
        let frames = half.take_count();
        drop(half);
        if (1..=FEW_FRAMES).contains(&frames)
            && let Ok(mut half) = egress.try_lock()
        {
            half.look();
        }
    }
}

fn wait(poll: &Poll) -> Vec<u64> {
    poll.wait(None).unwrap_or_else(|error| {
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

/// Time for waiting awake.
struct Budget {
    saved: Duration,
    since: Instant,
}

impl Budget {
    fn new() -> Self {
        Self { saved: MOST_SAVED, since: Instant::now() }
    }

    /// Asks again and again until it is so, or the time is over.
    fn spend(&mut self, mut is_there: impl FnMut() -> bool) {
        let begun = Instant::now();
        self.saved = (self.saved + (begun - self.since) / SPIN_SHARE).min(MOST_SAVED);
        self.since = begun;
        let end = begun + SPIN.min(self.saved);
        while Instant::now() < end && !is_there() {
            std::hint::spin_loop();
        }
        self.saved = self.saved.saturating_sub(begun.elapsed());
    }
}
