//! Records how a busy process runs and waits for its CPU, as a VM would.

use std::time::{Duration, Instant};

/// Shorter waits make no sender slower.
const LEAST: Duration = Duration::from_millis(2);

/// Runs for this time. Returns times of running and waiting in turn, us; the last wait is over.
pub fn record(time: Duration) -> Vec<u32> {
    let start = Instant::now();
    let (mut ran_since, mut last) = (start, start);
    let mut turns = Vec::new();
    while last - start < time {
        let now = Instant::now();
        if now - last >= LEAST {
            let us = |time: Duration| time.as_micros().clamp(1, u32::MAX.into()) as u32;
            turns.extend([us(last - ran_since), us(now - last)]);
            ran_since = now;
        }
        last = now;
    }
    turns
}
