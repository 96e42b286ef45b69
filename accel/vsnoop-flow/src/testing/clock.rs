//! Simulated time: a queue of events, and the periods in which the VM runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds.
pub const MS: u64 = 1_000_000;
/// The clock starts well above 0, as CLOCK_MONOTONIC does.
pub const START: u64 = 10_000 * MS;

/// A queue of events; events at the same time keep their order.
#[derive(Debug)]
pub struct Events<E> {
    order: BinaryHeap<(Reverse<u64>, Reverse<usize>)>,
    bodies: Vec<Option<E>>,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { order: BinaryHeap::new(), bodies: Vec::new() }
    }
}

impl<E> Events<E> {
    /// Adds `event` at `time`.
    pub fn at(&mut self, time: u64, event: E) {
        let id = self.bodies.len();
        self.bodies.push(Some(event));
        self.order.push((Reverse(time), Reverse(id)));
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.order.peek().map(|(Reverse(time), _)| *time)
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let (Reverse(time), Reverse(id)) = self.order.pop()?;
        Some((time, self.bodies[id].take().expect("an event happens once")))
    }
}

/// Pauses: start and length, ms from [`START`].
#[derive(Clone, Debug, Default)]
pub struct Freezes(pub Vec<(u64, u64)>);

impl Freezes {
    /// End of the pause at `time`; `None` if there is none.
    pub fn until(&self, time: u64) -> Option<u64> {
        let mut end = time;
        for _ in 0..=self.0.len() {
            for &(start, len) in &self.0 {
                let (start, stop) = (START + start * MS, START + (start + len) * MS);
                if (start..stop).contains(&end) {
                    end = stop;
                }
            }
        }
        (end > time).then_some(end)
    }

    /// Time between `from` and `to` without pauses.
    pub fn run_time(&self, from: u64, to: u64) -> u64 {
        let mut at = from;
        let mut ran = 0;
        while at < to {
            if let Some(end) = self.until(at) {
                at = end;
                continue;
            }
            let starts = self.0.iter().map(|f| START + f.0 * MS);
            let next = starts.filter(|&s| s > at).min().unwrap_or(u64::MAX).min(to);
            ran += next - at;
            at = next;
        }
        ran
    }
}
