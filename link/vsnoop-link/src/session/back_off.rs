//! Exponential back-off between attempts to dial: the first is immediate, then waits double, with
//! jitter, so that hosts that lost each other at the same time do not dial at the same time.

/// Jitter: a wait differs by at most this fraction of it.
const SPREAD: u64 = 4;

/// The waits between attempts.
#[derive(Clone, Debug)]
pub struct BackOff {
    first_ns: u64,
    last_ns: u64,
    attempts: u32,
    random: fastrand::Rng,
}

impl BackOff {
    /// Waits from the first to the last.
    pub fn new((first_ns, last_ns): (u64, u64), random: fastrand::Rng) -> Self {
        Self { first_ns, last_ns, attempts: 0, random }
    }

    /// Attempts since the last reset.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Counts an attempt; returns the wait before it.
    pub fn wait_ns(&mut self) -> u64 {
        let doublings = self.attempts.checked_sub(1);
        self.attempts = self.attempts.saturating_add(1);
        let Some(doublings) = doublings else { return 0 };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let wait_ns = self.first_ns.saturating_mul(factor).min(self.last_ns);
        let spread_ns = wait_ns / SPREAD;
        wait_ns - spread_ns + self.random.u64(0..=spread_ns.saturating_mul(2))
    }

    /// Begins anew: the next attempt is a first one.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn waits_double_up_to_the_last_and_begin_anew() {
        let mut back_off = BackOff::new((200 * MS, 30_000 * MS), fastrand::Rng::with_seed(1));
        assert_eq!(back_off.wait_ns(), 0);
        for expected_ms in [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            let wait_ms = back_off.wait_ns() / MS;
            let range = expected_ms * 3 / 4..=expected_ms * 5 / 4;
            assert!(range.contains(&wait_ms), "{wait_ms}, not about {expected_ms}");
        }
        for _ in 0..1000 {
            assert!(back_off.wait_ns() <= 37_500 * MS);
        }
        back_off.reset();
        assert_eq!(back_off.wait_ns(), 0);
    }

    #[test]
    fn ends_with_different_chance_do_not_dial_in_step() {
        let waits = |seed| {
            let mut back_off = BackOff::new((200 * MS, 1000 * MS), fastrand::Rng::with_seed(seed));
            (0..10).map(|_| back_off.wait_ns()).collect::<Vec<_>>()
        };
        assert_ne!(waits(1), waits(2));
    }
}
