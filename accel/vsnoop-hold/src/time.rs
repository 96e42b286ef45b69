//! Clock readings, and timers for very many holds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Interval of the engine's ticks, with which run time advances.
pub const TICK_NS: u64 = 50_000_000;

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// Run time of the VM (`run_time.rs`).
    pub run_time_ns: u64,
    /// Its live time.
    pub live_ns: u64,
}

/// When to look at a hold again, if nothing happens before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// By the clock.
    pub now_ns: Option<u64>,
    /// In the VM's run time.
    pub run_time_ns: Option<u64>,
}

/// One timer; at most one of its entries in [`Timers`] is valid.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timer {
    at: Option<u64>,
    entry: Option<u64>,
}

impl Timer {
    pub(crate) fn stop(&mut self) {
        self.at = None;
    }
}

/// A queue of holds, ordered by time.
///
/// A timer that is postponed keeps its entry, which is requeued when its old time comes. A timer
/// that is brought forward gets another entry, and the old one becomes invalid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(u64, u32)>>);

impl Timers {
    /// Sets the timer of `number` to `at`, ns.
    pub(crate) fn set(&mut self, timer: &mut Timer, at: u64, number: u32) {
        timer.at = Some(at);
        if timer.entry.is_none_or(|entry| at < entry) {
            timer.entry = Some(at);
            self.0.push(Reverse((at, number)));
        }
    }

    /// Takes up to `most` entries whose time has come; [`Timers::is_due`] tells which are valid.
    pub(crate) fn take(&mut self, now: u64, most: usize) -> Vec<(u64, u32)> {
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some(Reverse(entry)) = self.0.peek()
            && entry.0 <= now
        {
            entries.push(*entry);
            self.0.pop();
        }
        entries
    }

    /// Is the entry valid, and the timer's time over? If so, clears the timer.
    pub(crate) fn is_due(&mut self, timer: &mut Timer, entry: u64, now: u64, number: u32) -> bool {
        if timer.entry != Some(entry) {
            return false;
        }
        timer.entry = None;
        match timer.at {
            Some(later) if later > now => {
                self.set(timer, later, number);
                false
            }
            Some(_) => {
                timer.at = None;
                true
            }
            None => false,
        }
    }
}
