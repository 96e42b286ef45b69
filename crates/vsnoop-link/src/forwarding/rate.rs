//! A bounded rate, which threads take from with shared access.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const SECOND_NS: u64 = 1_000_000_000;

/// When what was taken so far is paid for, at the rate allowed (GCRA, ITU-T I.371). Threads that
/// take at the same moment may take a little more.
#[derive(Debug, Default)]
pub struct Rate {
    paid_ns: AtomicU64,
}

impl Rate {
    /// May one more be taken, at `per_second`, and `burst` at once?
    pub fn allows(&self, per_second: u64, burst: u64, now_ns: u64) -> bool {
        let each_ns = SECOND_NS / per_second.max(1);
        self.paid_ns.load(Relaxed).saturating_sub(now_ns) < burst.saturating_mul(each_ns)
    }

    /// Takes `count`, allowed or not.
    pub fn take(&self, count: u64, per_second: u64, now_ns: u64) {
        let each_ns = SECOND_NS / per_second.max(1);
        let paid_ns = self.paid_ns.load(Relaxed).max(now_ns);
        self.paid_ns.store(paid_ns + count * each_ns, Relaxed);
    }
}
