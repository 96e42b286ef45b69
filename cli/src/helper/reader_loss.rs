//! Taps whose VM was killed: no process reads them, and acknowledged bytes are outstanding.

use std::time::{Duration, Instant};

/// A tap without a reader for this time has lost its VM. Replacing a VMM takes less.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time since which all checks found the tap without a reader.
#[derive(Default)]
pub struct ReaderLoss {
    since: Option<Instant>,
}

impl ReaderLoss {
    /// Takes what a look at `now` has found; returns whether the tap has lost its VM.
    pub fn lasts(&mut self, has_no_reader: bool, now: Instant) -> bool {
        if !has_no_reader {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_gone_after_3_s_without_a_reader() {
        let (mut loss, start) = (ReaderLoss::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(!loss.lasts(true, at(0)));
        assert!(!loss.lasts(true, at(2999)));
        assert!(loss.lasts(true, at(3000)));
    }

    #[test]
    fn another_vmm_within_3_s_is_the_same_vm() {
        let (mut loss, start) = (ReaderLoss::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(!loss.lasts(true, at(0)));
        assert!(!loss.lasts(false, at(2000)));
        assert!(!loss.lasts(true, at(2500)));
        assert!(!loss.lasts(true, at(5000)));
        assert!(loss.lasts(true, at(5500)));
    }
}
