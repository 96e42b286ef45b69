//! CPU time of a link.
//!
//! The CPU time of whole threads is read by another thread, so that it costs nothing where frames
//! pass. Sealing and opening are calls of less than a microsecond, too short to read the clock each
//! time: a [`Stopwatch`] measures a sample of them and extrapolates.

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use vsnoop_link::compress::CodingClock;

use crate::counters::counts::{Counter, Tally};

/// One call of this number is measured; a number that the segments of super-packets are seldom a
/// multiple of.
const STRIDE: u64 = 13;
/// Bound of a measured call: a longer one was preempted.
const LONGEST_NS: u64 = 1_000_000;
/// Least time over which the number of cores in use is averaged.
const SPAN_NS: u64 = 1_000_000_000;

/// Sums up the time of short calls of one thread.
#[derive(Debug, Default)]
pub struct Stopwatch {
    calls: Tally,
    ns: Counter,
}

impl Stopwatch {
    pub fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let calls = self.calls.get();
        self.calls.set(calls.wrapping_add(1));
        if !calls.is_multiple_of(STRIDE) {
            return call();
        }
        let begun = std::time::Instant::now();
        let result = call();
        let ns = (begun.elapsed().as_nanos() as u64).min(LONGEST_NS);
        self.ns.add(ns * STRIDE);
        result
    }

    /// Nanoseconds, estimated.
    pub fn get(&self) -> u64 {
        self.ns.get()
    }
}

/// CPU time of the thread that asks, for compression.
pub fn coding_clock() -> CodingClock {
    Box::new(|| clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID))
}

/// CPU time of the whole process, handshakes included.
pub fn process_ns() -> u64 {
    clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of a thread that has not been joined; 0 once it has ended.
pub fn thread_ns<T>(thread: &JoinHandle<T>) -> u64 {
    let mut clock = 0;
    // SAFETY: the handle is held, so the thread was neither joined nor detached, and its pthread_t
    // is valid also after its end; `clock` is written before the call returns.
    let result = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t() as _, &mut clock) };
    if result == 0 { clock_ns(ClockId::from_raw(clock)) } else { 0 }
}

fn clock_ns(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Number of CPUs that were busy recently.
#[derive(Debug, Default)]
pub struct Load {
    /// The time of the last look, and what had been used then.
    looked: (u64, u64),
    cores: f64,
}

impl Load {
    /// Looks, if the last time is long enough ago.
    pub fn measure(&mut self, now_ns: u64, used_ns: u64) {
        let (then_ns, used_before_ns) = self.looked;
        let span_ns = now_ns.saturating_sub(then_ns);
        if span_ns >= SPAN_NS {
            self.cores = used_ns.saturating_sub(used_before_ns) as f64 / span_ns as f64;
            self.looked = (now_ns, used_ns);
        }
    }

    /// 1 is one CPU that did nothing else.
    pub fn cores(&self) -> f64 {
        self.cores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_stands_for_a_few_and_each_is_made() {
        let (watch, mut calls) = (Stopwatch::default(), 0);
        for _ in 0..2 * STRIDE {
            watch.time(|| {
                calls += 1;
                std::thread::sleep(Duration::from_millis(2));
            });
        }
        assert_eq!(calls, 2 * STRIDE);
        // Each is longer than what is believed of a call.
        assert_eq!(watch.get(), 2 * STRIDE * LONGEST_NS);
    }

    #[test]
    fn what_a_thread_has_used_is_read_from_outside() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let works = std::thread::spawn(move || {
            while thread_used() < 20_000_000 {}
            let _ = ready.send(thread_used());
            ended.recv()
        });
        let used = is_ready.recv().expect("it says so");
        assert!(thread_ns(&works) >= used && process_ns() >= used);
        drop(end);
        assert!(works.join().is_ok());
    }

    fn thread_used() -> u64 {
        clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
    }

    #[test]
    fn cores_are_of_the_last_span_and_not_of_the_whole_time() {
        let mut load = Load::default();
        load.measure(10 * SPAN_NS, 0);
        load.measure(12 * SPAN_NS, 3 * SPAN_NS);
        assert_eq!(load.cores(), 1.5);
        // Too soon for another look.
        load.measure(12 * SPAN_NS + 1, 4 * SPAN_NS);
        assert_eq!(load.cores(), 1.5);
        load.measure(14 * SPAN_NS, 3 * SPAN_NS);
        assert_eq!(load.cores(), 0.0);
    }
}
