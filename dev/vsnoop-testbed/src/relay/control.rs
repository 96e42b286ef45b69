//! State that the owner of a relay shares with one of its two
//! [`Forwarder`](super::forwarder::Forwarder)s.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::counters;
use super::faults::Faults;

#[derive(Debug, Default)]
pub struct Control {
    pub faults: Mutex<Faults>,
    /// Counts changes of `faults`: a forwarder takes the lock only after a change.
    generation: AtomicU64,
    /// The last change that the forwarder has seen.
    obeyed: AtomicU64,
    pub counters: counters::Live,
}

impl Control {
    pub fn set(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub fn refresh(&self, generation: &mut u64, faults: &mut Faults) {
        let current = self.generation.load(Ordering::Acquire);
        if current != *generation {
            *generation = current;
            *faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
            self.obeyed.store(current, Ordering::Release);
        }
    }

    pub fn is_obeyed(&self) -> bool {
        self.obeyed.load(Ordering::Acquire) == self.generation.load(Ordering::Acquire)
    }
}
