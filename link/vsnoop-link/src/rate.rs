//! A bounded rate.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const SECOND_NS: u64 = 1_000_000_000;

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Once in this time, in the long run.
    pub each_ns: u64,
    /// At once, after a pause.
    pub burst: u64,
}

impl RateLimit {
    /// So often in a second; 0 counts as 1.
    pub const fn per_second(per_s: u64, burst: u64) -> Self {
        let per_s = if per_s == 0 { 1 } else { per_s };
        Self { each_ns: SECOND_NS / per_s, burst }
    }
}

/// When what was taken so far is paid for, at the rate allowed (GCRA, ITU-T I.371). Threads that
/// take with shared access at the same moment may take a little more.
#[derive(Debug, Default)]
pub struct Rate {
    paid_ns: AtomicU64,
}

impl Rate {
    /// May one more be taken?
    pub fn allows(&self, limit: RateLimit, now_ns: u64) -> bool {
        let RateLimit { each_ns, burst } = limit;
        let ahead_ns = self.paid_ns.load(Relaxed).saturating_sub(now_ns);
        ahead_ns.saturating_add(each_ns) <= burst.saturating_mul(each_ns)
    }

    /// Takes `count`, allowed or not.
    pub fn charge(&self, count: u64, limit: RateLimit, now_ns: u64) {
        let paid_ns = self.paid_ns.load(Relaxed).max(now_ns);
        let cost_ns = count.saturating_mul(limit.each_ns);
        self.paid_ns.store(paid_ns.saturating_add(cost_ns), Relaxed);
    }

    /// Takes one if that is allowed.
    pub fn take(&self, limit: RateLimit, now_ns: u64) -> bool {
        let may = self.allows(limit, now_ns);
        if may {
            self.charge(1, limit, now_ns);
        }
        may
    }

    /// Whether all that was taken is paid for.
    pub fn is_unused(&self, now_ns: u64) -> bool {
        self.paid_ns.load(Relaxed) <= now_ns
    }

    /// Returns one that was taken.
    pub fn give_back(&self, limit: RateLimit) {
        let paid_ns = self.paid_ns.load(Relaxed);
        self.paid_ns.store(paid_ns.saturating_sub(limit.each_ns), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit::per_second(10, 5);

    fn taken(rate: &Rate, tries: usize, now_ns: u64) -> usize {
        (0..tries).filter(|_| rate.take(LIMIT, now_ns)).count()
    }

    #[test]
    fn a_burst_at_once_and_then_the_rate() {
        let rate = Rate::default();
        assert_eq!(taken(&rate, 100, SECOND_NS), 5);
        assert_eq!(taken(&rate, 100, SECOND_NS + SECOND_NS / 10 - 1), 0);
        assert_eq!(taken(&rate, 100, SECOND_NS + SECOND_NS / 10), 1);
        assert_eq!(taken(&rate, 100, 100 * SECOND_NS), 5, "a pause saves up no more");
    }

    #[test]
    fn what_is_given_back_may_be_taken_again() {
        let rate = Rate::default();
        assert_eq!(taken(&rate, 100, 0), 5);
        rate.give_back(LIMIT);
        assert_eq!(taken(&rate, 100, 0), 1);
        (0..100).for_each(|_| rate.give_back(LIMIT));
        assert_eq!(taken(&rate, 100, 0), 5);
    }

    #[test]
    fn what_was_charged_beyond_the_burst_is_paid_first() {
        let rate = Rate::default();
        rate.charge(25, LIMIT, 0);
        assert_eq!(taken(&rate, 100, 2 * SECOND_NS), 0);
        assert_eq!(taken(&rate, 100, 2 * SECOND_NS + SECOND_NS / 10), 1);
    }
}
