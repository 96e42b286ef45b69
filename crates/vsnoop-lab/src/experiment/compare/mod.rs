//! Comparisons: the same transfers to the same machines, in several configurations.
//!
//! Transfers come in rounds. A round is one transfer in each [`Configuration`], to the same machine
//! and of the same size, in random order and with a random pause before each, so that neither drift
//! nor the period of the scheduler favours one of them. What a configuration needs is set up before
//! its transfer and undone after it, when the connection has ended on both sides; `off` means that
//! nothing is attached at all.
//!
//! Rounds are measured in cells: a number of machines with a load each, and a path to the host. The
//! machines are booted once for all their paths.

mod comparison;
mod configuration;
mod plan;
mod transfers;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vsnoop_testbed::guest;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::stage::StageOptions;
use vsnoop_testbed::vsnoop::Vsnoop;

use super::definition::Options;
use super::lab::Lab;
use super::progress::Progress;
use crate::results::{CUT_SHORT, Results, Sample, size_text, statistics};

pub use comparison::Comparison;
pub use configuration::Configuration;
use plan::Machines;
use transfers::Transfers;

impl Comparison {
    pub fn run(&self, options: &Options) -> Result<Results> {
        let configurations = Configuration::chosen(self.configurations, &options.configurations)?;
        let machines = plan::machines(self, options)?;
        let plan = plan::rounds(self, options)?;
        let attaches = configurations.iter().any(|choice| choice.attach_options().is_some());
        let vsnoop = if attaches { Some(Vsnoop::find()?) } else { None };
        let congestion_control = plan::congestion_control(options)?;
        let mut lab = Lab::open(guest::Options::default())?;
        let mut results = lab.results(self.name);
        results.environment.insert("congestion_control".into(), json!(congestion_control));
        if let Some(vsnoop) = &vsnoop {
            results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
        }
        lab.describe_load(&mut results);
        let cells: usize = machines.iter().map(|machines| machines.cells.len()).sum();
        let rounds: usize = plan.iter().map(|(_, rounds)| rounds).sum();
        let mut progress = Progress::new(cells * rounds * configurations.len());
        let begin = Instant::now();
        let mut measure = |machines: &Machines| {
            let Machines { vms, load, .. } = *machines;
            let tuned = configurations.contains(&Configuration::Tuned);
            let stage = lab.boot(StageOptions { vms, tuned }, load, vsnoop.as_ref())?;
            let session = &mut lab.session;
            let mut transfers =
                Transfers::new(session, stage, &configurations, congestion_control, begin)?;
            for cell in &machines.cells {
                let path = transfers.enter(*cell).with_context(|| cell.to_string())?;
                results.environment.insert(format!("path_{}", cell.suffix()), json!(path));
                let cell_end = progress.done() + rounds * configurations.len();
                let samples = &mut results.samples;
                self.measure(&transfers, &configurations, &plan, samples, &mut progress)
                    .with_context(|| cell.to_string())?;
                progress.skip_to(cell_end);
                transfers.leave();
            }
            Ok::<_, anyhow::Error>(())
        };
        // The results keep the samples from before an error, and are marked as incomplete.
        if let Err(error) = machines.iter().try_for_each(&mut measure) {
            results.environment.insert(CUT_SHORT.into(), json!(format!("{error:#}")));
        }
        ensure!(
            !results.samples.is_empty(),
            "no transfer was finished within {:?}: {:?}",
            self.budget,
            results.environment.get(CUT_SHORT)
        );
        statistics::summarise(&mut results);
        results.figures = (self.figures)(&results);
        Ok(results)
    }

    /// All rounds of the cell that `transfers` has entered.
    fn measure(
        &self,
        transfers: &Transfers,
        configurations: &[Configuration],
        plan: &[(u64, usize)],
        samples: &mut Vec<Sample>,
        progress: &mut Progress,
    ) -> Result<()> {
        in_rounds(plan, self.budget, configurations, |configuration, size_bytes, round| {
            let name = configuration.name();
            let sample = transfers
                .measure(configuration, size_bytes, round)
                .with_context(|| format!("{name}, {}", size_text(size_bytes)))?;
            samples.push(sample);
            progress.step(format!("{} {name}", size_text(size_bytes)));
            Ok(())
        })
    }
}

/// Measures each size of a plan as often as it has rounds, all sizes spread over the whole time; a
/// round is one measurement of each configuration, in random order. Ends after `budget`, even if
/// rounds of the plan remain.
pub fn in_rounds(
    plan: &[(u64, usize)],
    budget: Duration,
    configurations: &[Configuration],
    mut measure: impl FnMut(Configuration, u64, usize) -> Result<()>,
) -> Result<()> {
    let begin = Instant::now();
    let rounds = plan::spread(plan);
    let total = rounds.len();
    for (round, size_bytes) in rounds.into_iter().enumerate() {
        if begin.elapsed() > budget {
            eprintln!("the time of this cell is up: {round} of {total} rounds were measured");
            break;
        }
        let mut order = configurations.to_vec();
        fastrand::shuffle(&mut order);
        for configuration in order {
            interrupt::check()?;
            measure(configuration, size_bytes, round)?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub const COMPARISON: Comparison = Comparison {
        name: "test",
        configurations: &[Configuration::Off],
        machines: &[(3, 0.6), (5, 1.0)],
        path_rtts_ms: &[0.0, 5.0],
        plan: &[(1000, 5), (2000, 5)],
        quick_plan: &[(1000, 1)],
        budget: Duration::from_secs(1),
        figures: |_| Vec::new(),
    };
}
