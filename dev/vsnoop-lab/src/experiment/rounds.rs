//! Measurements in rounds, so that neither drift nor the period of a scheduler favours one
//! configuration.
//!
//! A round is one measurement of each configuration, in random order. All sizes are spread over the
//! whole time. What an interrupted run has measured is left out, the rest follows in the same
//! rounds.

use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_testbed::interrupt;

use super::progress::Progress;
use crate::results::record::Record;
use crate::results::{Cell, Sample};

/// A configuration that is compared in a round.
pub trait Named: Copy {
    fn name(self) -> &'static str;
}

impl Named for &'static str {
    fn name(self) -> &'static str {
        self
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial<T> {
    pub configuration: T,
    pub size_bytes: u64,
    /// Counts the rounds of a cell.
    pub round: usize,
}

/// The rounds of a cell.
#[derive(Clone, Debug)]
pub struct Rounds<T> {
    pub configurations: Vec<T>,
    /// Sizes, and how many rounds each of them has.
    pub plan: Vec<(u64, usize)>,
    /// The longest time of a cell's measurements, even if rounds remain.
    pub budget: Duration,
}

impl<T: Named> Rounds<T> {
    /// How many measurements a cell has.
    pub fn count(&self) -> usize {
        let rounds: usize = self.plan.iter().map(|(_, rounds)| rounds).sum();
        rounds * self.configurations.len()
    }

    /// Whether an earlier part of the run has measured all of this cell.
    pub fn is_done(&self, cell: &Cell, record: &Record) -> bool {
        let rounds = spread(&self.plan);
        let has = |configuration: T, round: usize, size_bytes: u64| {
            record.has(configuration.name(), size_bytes, cell, round)
        };
        let mut all = rounds.iter().enumerate().flat_map(|(round, &size_bytes)| {
            self.configurations.iter().map(move |&one| has(one, round, size_bytes))
        });
        record.is_past(cell) || all.all(|has| has)
    }

    /// Measures a cell: each sample gets its configuration, size, cell, turn and time, and is on
    /// the disk before the next measurement begins.
    pub fn measure(
        &self,
        cell: Cell,
        record: &mut Record,
        progress: &mut Progress,
        mut measure: impl FnMut(Trial<T>) -> Result<Vec<Sample>>,
    ) -> Result<()> {
        let (begin, end) = (Instant::now(), progress.done() + self.count());
        let rounds = spread(&self.plan);
        let total = rounds.len();
        for (round, size_bytes) in rounds.into_iter().enumerate() {
            if begin.elapsed() > self.budget {
                eprintln!("the time of this cell is up: {round} of {total} rounds were measured");
                break;
            }
            let mut order = self.configurations.clone();
            fastrand::shuffle(&mut order);
            for configuration in order {
                interrupt::check()?;
                let name = configuration.name();
                if record.has(name, size_bytes, &cell, round) {
                    progress.skip(1);
                    continue;
                }
                let at_ms = record.elapsed_ms();
                for sample in measure(Trial { configuration, size_bytes, round })? {
                    record.push(Sample {
                        configuration: name.to_owned(),
                        size_bytes,
                        cell,
                        turn: Some(round),
                        at_ms,
                        ..sample
                    })?;
                }
                progress.step(format!("{cell}: {name}"));
            }
        }
        progress.skip_to(end);
        Ok(())
    }
}

/// The sizes of all rounds, each size spread evenly over the whole time, so that an end before the
/// plan is done cuts all sizes alike.
fn spread(plan: &[(u64, usize)]) -> Vec<u64> {
    let mut places: Vec<(f64, u64)> = plan
        .iter()
        .flat_map(|&(size, count)| (0..count).map(move |i| ((i as f64 + 0.5) / count as f64, size)))
        .collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.into_iter().map(|(_, size)| size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_spread_over_the_whole_plan() {
        let order = spread(&[(1, 8), (2, 2)]);
        assert_eq!(order.len(), 10);
        assert_eq!(order.iter().filter(|&&size| size == 2).count(), 2);
        assert!(order[..5].contains(&2) && order[5..].contains(&2));
    }
}
