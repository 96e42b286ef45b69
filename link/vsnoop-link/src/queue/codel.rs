//! Controlled delay (RFC 8289) for one flow: items whose sojourn time exceeded the target for an
//! interval are dropped, at a rate that rises until the flow slows down.
//!
//! A queue is good while it absorbs a burst and bad while it stands. The least sojourn time during
//! one interval tells them apart: above the target the queue stands. Items are super-packets, one
//! of which may be all that a flow has in flight, so a flow's last item is never dropped.

/// Control state of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    /// When the sojourn time will have been above the target for an interval.
    first_above_ns: Option<u64>,
    dropping: bool,
    drop_next_ns: u64,
    count: u32,
    last_count: u32,
}

/// The parameters of RFC 8289.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Sojourn time that is accepted.
    pub target_ns: u64,
    /// In the order of a round trip of the flows.
    pub interval_ns: u64,
}

impl Codel {
    /// Whether to drop the first item of the flow's queue, which waited for `sojourn_ns`, instead
    /// of sending it. `last`: no item follows.
    pub fn drops(&mut self, times: Times, sojourn_ns: u64, last: bool, now_ns: u64) -> bool {
        let stands = self.is_standing(times, sojourn_ns, last, now_ns);
        if self.dropping {
            if !stands {
                self.dropping = false;
                return false;
            }
            if now_ns < self.drop_next_ns {
                return false;
            }
            self.count = self.count.saturating_add(1);
            self.drop_next_ns = self.next_drop_ns(times, self.drop_next_ns.max(now_ns));
            return true;
        }
        if !stands {
            return false;
        }
        self.dropping = true;
        // A flow that left this state shortly ago resumes near its last drop rate (RFC 8289).
        let recent = now_ns.saturating_sub(self.drop_next_ns) < 16 * times.interval_ns;
        let delta = self.count.saturating_sub(self.last_count);
        self.count = if recent && delta > 1 { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next_ns = self.next_drop_ns(times, now_ns);
        true
    }

    fn is_standing(&mut self, times: Times, sojourn_ns: u64, last: bool, now_ns: u64) -> bool {
        if last || sojourn_ns < times.target_ns {
            self.first_above_ns = None;
            return false;
        }
        match self.first_above_ns {
            None => {
                self.first_above_ns = Some(now_ns.saturating_add(times.interval_ns));
                false
            }
            Some(then) => now_ns >= then,
        }
    }

    fn next_drop_ns(&self, times: Times, from_ns: u64) -> u64 {
        let step = times.interval_ns as f64 / f64::from(self.count.max(1)).sqrt();
        from_ns.saturating_add(step as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const TIMES: Times = Times { target_ns: 5 * MS, interval_ns: 100 * MS };

    #[test]
    fn a_burst_is_left_alone_and_a_standing_queue_is_not() {
        let mut codel = Codel::default();
        assert!((0..99).all(|ms| !codel.drops(TIMES, 20 * MS, false, ms * MS)));
        assert!(!codel.drops(TIMES, 4 * MS, false, 99 * MS), "it has drained");
        assert!((100..200).all(|ms| !codel.drops(TIMES, 20 * MS, false, ms * MS)));
        assert!(codel.drops(TIMES, 20 * MS, false, 200 * MS));
    }

    #[test]
    fn drops_come_faster_until_it_drains() {
        let mut codel = Codel::default();
        let drops: Vec<u64> =
            (0..1000).filter(|ms| codel.drops(TIMES, 20 * MS, false, ms * MS)).collect();
        let gaps: Vec<u64> = drops.windows(2).map(|w| w[1] - w[0]).collect();
        assert!(gaps.first() == Some(&100) && gaps.is_sorted_by(|a, b| a >= b), "{gaps:?}");
        assert!(!codel.drops(TIMES, MS, false, 1001 * MS));
        assert!(!codel.drops(TIMES, 20 * MS, false, 1002 * MS));
    }

    #[test]
    fn the_last_item_of_a_flow_is_never_dropped() {
        let mut codel = Codel::default();
        assert!((0..10_000).all(|ms| !codel.drops(TIMES, 1000 * MS, true, ms * MS)));
    }
}
