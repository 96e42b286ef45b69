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
mod plan;
mod transfers;

use anyhow::{Context, Result};
use serde_json::json;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::StageOptions;
use vsnoop_testbed::vsnoop::Vsnoop;

use super::configuration::Configuration;
use super::definition::Options;
use super::lab::Lab;
use super::progress::Progress;
use super::rounds::{Rounds, Trial};
use crate::results::record::Record;
use crate::results::size_text;

pub use comparison::Comparison;
use plan::Machines;
use transfers::Transfers;
pub use transfers::{HELD, HOLD_FULL};

impl Comparison {
    pub fn run(&self, options: &Options, record: &mut Record) -> Result<()> {
        let configurations = Configuration::chosen(self.configurations, &options.configurations)?;
        let machines = plan::machines(self, options)?;
        let plan = plan::rounds(self, options)?;
        let attaches = configurations.iter().any(|choice| choice.attach_options().is_some());
        let vsnoop = if attaches { Some(Vsnoop::find()?) } else { None };
        let congestion_control = options.congestion_control()?;
        let budget = self.budget;
        let rounds = Rounds { configurations: configurations.clone(), plan, budget };
        let mut lab = Lab::open(guest::Options::default())?;
        let environment = &mut record.results.environment;
        lab.describe(environment);
        environment.insert("congestion_control".into(), json!(congestion_control));
        if let Some(vsnoop) = &vsnoop {
            environment.insert("vsnoop".into(), json!(vsnoop.version()?));
        }
        Lab::describe_load(plan::shares(options), environment);
        let cells: usize = machines.iter().map(|machines| machines.cells.len()).sum();
        let mut progress = Progress::new(cells * rounds.count());
        for Machines { vms, share, load, cells } in machines {
            let left: Vec<_> = cells.iter().filter(|cell| !rounds.is_done(cell, record)).collect();
            progress.skip((cells.len() - left.len()) * rounds.count());
            if left.is_empty() {
                continue;
            }
            let tuned = configurations.contains(&Configuration::Tuned);
            let options = StageOptions { vms, tuned };
            let environment = &mut record.results.environment;
            let stage = lab.boot(options, share, load, vsnoop.as_ref(), environment)?;
            let session = &mut lab.session;
            let mut transfers =
                Transfers::new(session, stage, &configurations, congestion_control)?;
            for &cell in left {
                let path = transfers.enter(cell).with_context(|| cell.to_string())?;
                let name = format!("path_{}", cell.suffix());
                record.results.environment.insert(name, json!(path));
                rounds
                    .measure(cell, record, &mut progress, |trial| {
                        let Trial { configuration, size_bytes, round } = trial;
                        let sample = transfers.measure(configuration, size_bytes, round);
                        let what =
                            || format!("{}, {}", configuration.name(), size_text(size_bytes));
                        Ok(vec![sample.with_context(what)?])
                    })
                    .with_context(|| cell.to_string())?;
                transfers.leave();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::time::Duration;

    use super::*;

    pub const COMPARISON: Comparison = Comparison {
        name: "test",
        configurations: &[Configuration::Off],
        machines: &[(3, 0.6), (5, 1.0)],
        path_rtts_ms: &[0.0, 5.0],
        plan: &[(1000, 5), (2000, 5)],
        quick_plan: &[(1000, 1)],
        budget: Duration::from_secs(1),
    };
}
