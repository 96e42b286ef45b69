//! Whether many datagrams may leave with one system call (UDP GSO).
//!
//! Kernels and network cards are known that segment such batches wrongly: single datagrams arrive
//! whole, those of a batch do not open at the peer, which counts them as lost. So a path that loses
//! a large share is tried without batches for a while. If the loss goes, batches were to blame, and
//! stay off; if not, they were not. Both verdicts hold for a time that doubles when the next trial
//! says the same.
//!
//! ```text
//!  ON --[two samples lose a fourth]--> TRIAL --[loss is at most a fourth of that]--> OFF
//!   ^                                    |                                            |
//!   +------[loss stays: CLEARED]---------+                                            |
//!   +------[after 10 minutes, or twice the time before]-------------------------------+
//! ```

/// Packets of a sample: fewer say nothing about the share that is lost.
const SAMPLE_PACKETS: u64 = 32;
/// A share of 1 / this is a large one.
const LARGE: u64 = 4;
/// Samples that lose much before the trial.
const SAMPLES: u8 = 2;
/// Packets of a trial.
const TRIAL_PACKETS: u64 = 4 * SAMPLE_PACKETS;
/// Reports of the peer meanwhile are, in part, of the time before: it reports about once a second.
const SETTLE_NS: u64 = 3_000_000_000;
/// How long a verdict holds: at first, and at most.
const FIRST_NS: u64 = 600_000_000_000;
const LAST_NS: u64 = 86_400_000_000_000;

/// A change that the operator is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchChange {
    /// For a trial.
    TriedWithout,
    /// Batches were to blame; they stay off for this time.
    Off { for_ns: u64 },
    /// Batches are not to blame, or it is time to look again.
    On,
}

/// Whether batches leave, and until when they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchState {
    On,
    Trial,
    Off { until_ns: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    On {
        bad: u8,
    },
    Trial {
        /// Packets that were lost in a thousand before.
        before: u64,
        /// Reports from then on count.
        from_ns: u64,
    },
    Off {
        until_ns: u64,
    },
}

/// Whether the datagrams of one peer leave together.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    state: State,
    lost: u64,
    delivered: u64,
    /// There is no trial before.
    cleared_until_ns: u64,
    /// How long the last verdict held, and whether batches were to blame.
    verdict: Option<(u64, bool)>,
}

impl Default for Batches {
    fn default() -> Self {
        let state = State::On { bad: 0 };
        Self { state, lost: 0, delivered: 0, cleared_until_ns: 0, verdict: None }
    }
}

impl Batches {
    pub fn state(&self) -> BatchState {
        match self.state {
            State::On { .. } => BatchState::On,
            State::Trial { .. } => BatchState::Trial,
            State::Off { until_ns } => BatchState::Off { until_ns },
        }
    }

    pub fn are_on(&self) -> bool {
        self.state() == BatchState::On
    }

    /// Packets that were lost and delivered since the last call.
    pub fn add(&mut self, lost: u64, delivered: u64, now_ns: u64) -> Option<BatchChange> {
        if let State::Off { until_ns } = self.state {
            return (now_ns >= until_ns).then(|| self.turn_on());
        }
        (self.lost, self.delivered) = (self.lost + lost, self.delivered + delivered);
        let packets = self.lost + self.delivered;
        match self.state {
            State::On { bad } if packets >= SAMPLE_PACKETS => {
                let (lost, _) = self.take_sample();
                let is_bad = lost * LARGE >= packets && now_ns >= self.cleared_until_ns;
                let bad = if is_bad { bad + 1 } else { 0 };
                self.state = State::On { bad };
                (bad >= SAMPLES).then(|| {
                    let from_ns = now_ns.saturating_add(SETTLE_NS);
                    self.state = State::Trial { before: lost * 1000 / packets, from_ns };
                    BatchChange::TriedWithout
                })
            }
            State::Trial { from_ns, .. } if now_ns < from_ns => {
                self.take_sample();
                None
            }
            State::Trial { before, .. } if packets >= TRIAL_PACKETS => {
                let (lost, _) = self.take_sample();
                let is_to_blame = lost * 1000 / packets <= before / LARGE;
                let for_ns = self.judge_batch(is_to_blame);
                if is_to_blame {
                    self.state = State::Off { until_ns: now_ns.saturating_add(for_ns) };
                    return Some(BatchChange::Off { for_ns });
                }
                self.cleared_until_ns = now_ns.saturating_add(for_ns);
                Some(self.turn_on())
            }
            _ => None,
        }
    }

    fn take_sample(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.lost), std::mem::take(&mut self.delivered))
    }

    fn turn_on(&mut self) -> BatchChange {
        self.state = State::On { bad: 0 };
        BatchChange::On
    }

    /// How long a verdict holds.
    fn judge_batch(&mut self, is_to_blame: bool) -> u64 {
        let time_ns = match self.verdict {
            Some((time_ns, same)) if same == is_to_blame => LAST_NS.min(2 * time_ns),
            _ => FIRST_NS,
        };
        self.verdict = Some((time_ns, is_to_blame));
        time_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Sends 1000 datagrams a second for a time, of which batches lose `in_batches` and single ones
    /// `single`. The peer reports them a second later. Returns the seconds with batches, and the
    /// changes.
    fn run(seconds: u64, in_batches: u64, single: u64) -> (u64, Vec<BatchChange>) {
        let (mut batches, mut with, mut changes) = (Batches::default(), 0, Vec::new());
        let mut lost_before = 0;
        for second in 0..seconds {
            let lost = if batches.are_on() { in_batches } else { single };
            with += u64::from(batches.are_on());
            let reported = std::mem::replace(&mut lost_before, lost);
            changes.extend(batches.add(reported, 1000 - reported, second * SECOND_NS));
        }
        (with, changes)
    }

    #[test]
    fn batches_that_fail_where_single_datagrams_do_not_are_off_by_themselves() {
        let (with, changes) = run(600, 600, 0);
        assert_eq!(changes, [BatchChange::TriedWithout, BatchChange::Off { for_ns: FIRST_NS }]);
        assert_eq!(with, 3);
        // They are tried again, less and less often.
        let (with, changes) = run(86_400, 600, 0);
        let offs = changes.iter().filter(|change| matches!(change, BatchChange::Off { .. }));
        assert!((6..=8).contains(&offs.count()), "{changes:?}");
        assert!(with < 30, "{with} s with batches");
    }

    #[test]
    fn a_path_that_loses_single_datagrams_too_keeps_its_batches() {
        let (with, changes) = run(600, 400, 400);
        assert_eq!(changes, [BatchChange::TriedWithout, BatchChange::On]);
        assert!(with >= 597, "{with} s with batches");
        let (with, changes) = run(3600, 200, 200);
        assert_eq!((with, changes), (3600, vec![]));
    }

    #[test]
    fn the_state_says_until_when_they_are_off() {
        let mut batches = Batches::default();
        let mut states = Vec::new();
        for second in 0..10 {
            let lost = if batches.are_on() { 600 } else { 0 };
            batches.add(lost, 1000 - lost, second * SECOND_NS);
            states.push(batches.state());
        }
        states.dedup();
        // Two samples, and a trial.
        let until_ns = SECOND_NS + SETTLE_NS + FIRST_NS;
        assert_eq!(states, [BatchState::On, BatchState::Trial, BatchState::Off { until_ns }]);
    }

    #[test]
    fn few_datagrams_prove_nothing() {
        let mut batches = Batches::default();
        for second in 0..15 {
            assert_eq!(batches.add(1, 1, second * SECOND_NS), None);
        }
        assert!(batches.are_on());
    }
}
