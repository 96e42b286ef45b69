//! Round trips of probes, for the status and for timeouts.
//!
//! They are smoothed as in TCP (RFC 6298); the jitter is that of RTP (RFC 3550, section 6.4.1). The
//! minimum is that of the last minute or two, because a path may become longer.

/// Window of the minimum filter.
const WINDOW_NS: u64 = 60_000_000_000;

/// Round trips, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    /// Number of measured round trips.
    pub count: u64,
    /// The last one.
    pub last_ns: u64,
    /// The shortest one ever.
    pub min_ns: u64,
    /// The longest one ever.
    pub max_ns: u64,
    /// The smoothed round trip.
    pub smoothed_ns: u64,
    /// Mean deviation from the smoothed one.
    pub mdev_ns: u64,
    /// Difference between successive round trips, smoothed.
    pub jitter_ns: u64,
    sum_ns: u128,
    /// The one before the last.
    before_ns: u64,
    /// The minimum of this window, and that of the one before.
    least_ns: [u64; 2],
    window_since_ns: u64,
}

impl RoundTrip {
    /// Adds a measured round trip.
    pub fn add(&mut self, sample_ns: u64, now_ns: u64) {
        // Nothing real takes longer; sums stay far from their ends.
        let sample_ns = sample_ns.min(1 << 50);
        if self.count == 0 {
            (self.min_ns, self.smoothed_ns, self.mdev_ns) = (sample_ns, sample_ns, sample_ns / 2);
            self.least_ns = [sample_ns; 2];
            self.window_since_ns = now_ns;
        } else {
            let step_ns = sample_ns.abs_diff(self.last_ns);
            self.jitter_ns = self.jitter_ns - self.jitter_ns / 16 + step_ns / 16;
            let off_ns = sample_ns.abs_diff(self.smoothed_ns);
            self.mdev_ns = self.mdev_ns - self.mdev_ns / 4 + off_ns / 4;
            self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + sample_ns / 8;
        }
        if now_ns.saturating_sub(self.window_since_ns) >= WINDOW_NS {
            self.least_ns = [sample_ns, self.least_ns[0]];
            self.window_since_ns = now_ns;
        }
        self.least_ns[0] = self.least_ns[0].min(sample_ns);
        self.before_ns = if self.count == 0 { sample_ns } else { self.last_ns };
        self.last_ns = sample_ns;
        self.min_ns = self.min_ns.min(sample_ns);
        self.max_ns = self.max_ns.max(sample_ns);
        self.sum_ns = self.sum_ns.saturating_add(u128::from(sample_ns));
        self.count += 1;
    }

    /// The mean of all round trips.
    pub fn avg_ns(&self) -> u64 {
        (self.sum_ns / u128::from(self.count.max(1))) as u64
    }

    /// The minimum of the last window or two.
    pub fn recent_min_ns(&self) -> u64 {
        self.least_ns[0].min(self.least_ns[1])
    }

    /// Time after which a probe counts as lost: one and a half smoothed round trips and four
    /// deviations (as in RFC 6298), within bounds.
    pub fn timeout_ns(&self) -> u64 {
        const UNKNOWN_NS: u64 = 500_000_000;
        const BOUNDS_NS: (u64, u64) = (100_000_000, 2_000_000_000);
        if self.count == 0 {
            return UNKNOWN_NS;
        }
        let timeout_ns = self.smoothed_ns + self.smoothed_ns / 2 + 4 * self.mdev_ns;
        timeout_ns.clamp(BOUNDS_NS.0, BOUNDS_NS.1)
    }

    /// Whether the last two round trips show a queue on the path. One alone may be chance.
    pub fn is_queued(&self) -> bool {
        let least_ns = self.recent_min_ns();
        self.last_ns.min(self.before_ns) > least_ns + least_ns / 4 + 2_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    #[test]
    fn a_steady_path_has_no_jitter() {
        let mut rtt = RoundTrip::default();
        (0..100).for_each(|i| rtt.add(20 * MS, i * S));
        assert_eq!((rtt.min_ns, rtt.avg_ns(), rtt.max_ns), (20 * MS, 20 * MS, 20 * MS));
        assert!(rtt.smoothed_ns.abs_diff(20 * MS) < 100 && rtt.jitter_ns == 0 && !rtt.is_queued());
        assert!(rtt.mdev_ns < 100, "{}", rtt.mdev_ns);
    }

    #[test]
    fn jitter_and_deviation_follow_the_changes() {
        let mut rtt = RoundTrip::default();
        (0..1000).for_each(|i| rtt.add(if i % 2 == 0 { 20 * MS } else { 30 * MS }, i * S));
        assert!((9 * MS..=10 * MS).contains(&rtt.jitter_ns), "{}", rtt.jitter_ns);
        assert!((4 * MS..=6 * MS).contains(&rtt.mdev_ns), "{}", rtt.mdev_ns);
        assert_eq!(rtt.avg_ns(), 25 * MS);
        assert!(!rtt.is_queued(), "never two in a row");
        rtt.add(30 * MS, 1000 * S);
        assert!(rtt.is_queued());
    }

    #[test]
    fn a_path_that_became_longer_is_not_congested_for_ever() {
        let mut rtt = RoundTrip::default();
        (0..10).for_each(|i| rtt.add(10 * MS, i * S));
        (10..12).for_each(|i| rtt.add(50 * MS, i * S));
        assert!(rtt.is_queued());
        (12..200).for_each(|i| rtt.add(50 * MS, i * S));
        assert!(!rtt.is_queued());
        assert_eq!(rtt.min_ns, 10 * MS);
    }

    #[test]
    fn extreme_samples_do_no_harm() {
        let mut rtt = RoundTrip::default();
        for i in 0..1000 {
            rtt.add(u64::MAX, u64::MAX - i);
            rtt.add(0, i);
        }
        assert!(rtt.timeout_ns() <= 2 * S && rtt.avg_ns() < u64::MAX);
        rtt.is_queued();
    }
}
