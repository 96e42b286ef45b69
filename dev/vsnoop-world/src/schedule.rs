//! Periods in which a VM, or a process, runs.

use std::sync::Arc;

use vsnoop_flow::testing::clock::{MS, START};

const US: u64 = MS / 1_000;

/// Times of a turn: a VM runs, then it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub run_us: u64,
    pub stop_us: u64,
}

/// Times are ms from [`START`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Always,
    /// Stops for `stop` of every `period`, first at `from`.
    Periodic {
        from: u64,
        period: u64,
        stop: u64,
    },
    /// Stops once.
    Once {
        at: u64,
        stop: u64,
    },
    /// Turns that were recorded, again and again; at first it is `from_us` into them.
    Recorded {
        from_us: u64,
        turns: Arc<[Turn]>,
    },
}

impl Schedule {
    /// End of the stop at `time`; `None` if there is none.
    pub fn until(&self, time: u64) -> Option<u64> {
        let (start, stop) = self.stop_around(time)?;
        (start..stop).contains(&time).then_some(stop)
    }

    /// The last stop that begins by `time`.
    fn stop_around(&self, time: u64) -> Option<(u64, u64)> {
        let (start, stop) = match *self {
            Schedule::Recorded { from_us, ref turns } => {
                let total: u64 = turns.iter().map(|turn| turn.run_us + turn.stop_us).sum();
                let mut since = (time.checked_sub(START)? + from_us * US) % (total * US);
                for turn in turns.iter() {
                    let (run, whole) = (turn.run_us * US, (turn.run_us + turn.stop_us) * US);
                    if since < whole {
                        let stood = since.checked_sub(run)?;
                        return Some((time - stood, time - stood + turn.stop_us * US));
                    }
                    since -= whole;
                }
                return None;
            }
            Schedule::Always => return None,
            Schedule::Once { at, stop } => (START + at * MS, stop),
            Schedule::Periodic { from, period, stop } => {
                let since = time.checked_sub(START + from * MS)?;
                (time - since % (period * MS), stop)
            }
        };
        Some((start, start + stop * MS))
    }

    /// Time between `from` and `to` without stops.
    pub fn run_time(&self, from: u64, to: u64) -> u64 {
        self.ran_by(to) - self.ran_by(from)
    }

    fn ran_by(&self, time: u64) -> u64 {
        let stood = match *self {
            Schedule::Recorded { from_us, ref turns } => {
                let from = from_us * US;
                let until = from + time.saturating_sub(START);
                stood_in(turns, until) - stood_in(turns, from)
            }
            Schedule::Always => 0,
            Schedule::Once { at, stop } => time.saturating_sub(START + at * MS).min(stop * MS),
            Schedule::Periodic { from, period, stop } => {
                let since = time.saturating_sub(START + from * MS);
                since / (period * MS) * stop * MS + (since % (period * MS)).min(stop * MS)
            }
        };
        time - stood
    }
}

/// Returns how long the VM stands in the first `time` ns of these turns, again and again.
fn stood_in(turns: &[Turn], time: u64) -> u64 {
    let total: u64 = turns.iter().map(|turn| turn.run_us + turn.stop_us).sum();
    let stops: u64 = turns.iter().map(|turn| turn.stop_us).sum();
    let mut stood = time / (total * US) * stops * US;
    let mut left = time % (total * US);
    for turn in turns {
        stood += left.saturating_sub(turn.run_us * US).min(turn.stop_us * US);
        left = left.saturating_sub((turn.run_us + turn.stop_us) * US);
    }
    stood
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_turns_follow_each_other() {
        let turn = |run_us, stop_us| Turn { run_us, stop_us };
        let schedule = Schedule::Recorded {
            from_us: 1_000,
            turns: [turn(2_000, 3_000), turn(4_000, 1_000)].into(),
        };
        let at = |us: u64| START + us * US;
        assert_eq!(schedule.until(at(500)), None);
        assert_eq!(schedule.until(at(1_000)), Some(at(4_000)));
        assert_eq!(schedule.until(at(4_000)), None);
        assert_eq!(schedule.until(at(8_500)), Some(at(9_000)));
        assert_eq!(schedule.until(at(11_500)), Some(at(14_000)));
        assert_eq!(schedule.run_time(START, at(2_000)), 1_000 * US);
        assert_eq!(schedule.run_time(START, at(10_000)), 6_000 * US);
    }
}
