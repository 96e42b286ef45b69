//! Estimates how fast a connection drains, from the queue before it.
//!
//! Only what leaves while more waits behind it tells: then the connection had as much as it could
//! take. Bytes and times of such spans are added up until they make a sample, and samples are
//! smoothed.

/// A sample needs this much time with a queue. Long enough that a send buffer that was empty and
/// took a burst does not count for much.
const SAMPLE_NS: u64 = 20_000_000;
/// A new sample has the weight 1 / `WEIGHT`.
const WEIGHT: u64 = 4;

/// The measured rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainRate {
    bytes_per_s: Option<u64>,
    /// When something left last and left others waiting.
    busy_since_ns: Option<u64>,
    span_ns: u64,
    span_bytes: u64,
}

impl DrainRate {
    /// Something left the queue. `waiting`: others still wait.
    pub fn note_left(&mut self, bytes: usize, waiting: bool, now_ns: u64) {
        if let Some(since_ns) = self.busy_since_ns {
            self.span_ns += now_ns.saturating_sub(since_ns);
            self.span_bytes += bytes as u64;
            if self.span_ns >= SAMPLE_NS {
                self.take_sample();
            }
        }
        self.busy_since_ns = waiting.then_some(now_ns);
    }

    /// The queue was found empty.
    pub fn note_idle(&mut self) {
        self.busy_since_ns = None;
    }

    fn take_sample(&mut self) {
        let sample = u128::from(self.span_bytes) * 1_000_000_000 / u128::from(self.span_ns);
        let sample = u64::try_from(sample).unwrap_or(u64::MAX);
        self.bytes_per_s = Some(match self.bytes_per_s {
            None => sample,
            Some(old) => old - old / WEIGHT + sample / WEIGHT,
        });
        (self.span_ns, self.span_bytes) = (0, 0);
    }

    /// Unknown before the first queue.
    pub fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }

    /// Bytes that leave within a time.
    pub fn bytes_in(&self, ns: u64) -> Option<usize> {
        let bytes = u128::from(self.bytes_per_s?) * u128::from(ns) / 1_000_000_000;
        Some(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Time to send `bytes` at the estimated rate, ns. A stalled connection takes a second per
    /// byte.
    pub fn ns_of(&self, bytes: usize) -> Option<u64> {
        let ns = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_s?.max(1));
        Some(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_times_with_a_queue() {
        let mut rate = DrainRate::default();
        let mut now = 0;
        // 1000 bytes each 100 us, with pauses in which nothing waits.
        for burst in 0..100 {
            for i in 0..50 {
                rate.note_left(1000, i < 49, now);
                now += 100_000;
            }
            now += burst * 10_000_000;
        }
        let measured = rate.bytes_per_s().expect("measured");
        assert!((9_900_000..=10_100_000).contains(&measured), "{measured}");
        assert_eq!(rate.bytes_in(1_000_000), Some(measured as usize / 1000));
    }

    #[test]
    fn without_a_queue_nothing_is_known() {
        let mut rate = DrainRate::default();
        for i in 0..1000 {
            rate.note_left(1000, false, i * 1_000_000);
        }
        assert_eq!(rate.bytes_per_s(), None);
    }

    #[test]
    fn extreme_times_and_sizes_do_no_harm() {
        let mut rate = DrainRate::default();
        for (bytes, now) in [(usize::MAX / 4, 5), (0, 3), (1, u64::MAX / 2), (usize::MAX / 4, 0)] {
            rate.note_left(bytes, true, now);
        }
        rate.ns_of(usize::MAX);
        rate.bytes_in(u64::MAX);
    }
}
