//! Periods in which a VM, or a process, runs.

use vsnoop_flow::testing::clock::{MS, START};

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
