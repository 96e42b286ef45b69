//! A bound on the threads of handshakes.
//!
//! The guard bounds the calls that are under way, but the thread of a displaced call runs until it
//! reads that its connection was shut down. On a busy machine a flood displaces calls sooner than
//! their threads get a CPU. So the thread that accepts calls waits while there are too many.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct HandshakeThreads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    running: Mutex<usize>,
    ended: Condvar,
}

/// Permission for one thread, returned when this is dropped.
#[derive(Debug)]
pub struct Permit(Arc<Shared>);

impl HandshakeThreads {
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Shared { most, running: Mutex::default(), ended: Condvar::new() }))
    }

    /// Waits until one more thread may run.
    pub fn permit(&self) -> Permit {
        let shared = &self.0;
        let is_full = |running: &mut usize| *running >= shared.most;
        let mut running = shared
            .ended
            .wait_while(shared.running(), is_full)
            .unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Permit(Arc::clone(shared))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.running() -= 1;
        self.0.ended.notify_one();
    }
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_call_waits_until_one_of_the_most_threads_has_ended() {
        const MOST: usize = 3;
        let threads = HandshakeThreads::new(MOST);
        let (running, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..20 * MOST {
                let permit = threads.permit();
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                scope.spawn(|| {
                    thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                });
            }
        });
        assert!((1..=MOST).contains(&peak.into_inner()));
        // Each permission is returned.
        drop((0..MOST).map(|_| threads.permit()).collect::<Vec<_>>());
    }
}
