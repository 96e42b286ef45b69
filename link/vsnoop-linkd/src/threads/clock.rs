//! The clock of a link.

use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    begun: Instant,
}

impl Clock {
    pub fn start() -> Self {
        Self { begun: Instant::now() }
    }

    /// Nanoseconds since the link began.
    pub fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}
