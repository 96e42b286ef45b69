//! Times, and timers for very many holds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How late it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// How long the VM has run.
    pub run_time_ns: u64,
}

/// When a hold is to be looked at again, if nothing happens before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// By the clock.
    pub now_ns: Option<u64>,
    /// In the VM's own time.
    pub run_time_ns: Option<u64>,
}

/// One timer; at most one entry of [`Timers`] counts for it.
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

/// Numbers of holds in the order of their times.
///
/// A timer that is put off keeps its entry, which is set anew when its time comes; one that is
/// brought forward gets another entry, and the former counts no more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(u64, u32)>>);

impl Timers {
    /// Sets the timer of `number` to `at`, whatever it was set to.
    pub(crate) fn set(&mut self, timer: &mut Timer, at: u64, number: u32) {
        timer.at = Some(at);
        if timer.entry.is_none_or(|entry| at < entry) {
            timer.entry = Some(at);
            self.0.push(Reverse((at, number)));
        }
    }

    /// Entries whose time has come, `most` of them; [`Timers::is_due`] is to be asked about each.
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

    /// Has the timer's time come, as its entry of `entry` says? Then it stands no more.
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
