//! The runner `uploads`: HTTP requests by curl to nginx in a VM with a CPU quota, over paths of
//! several lengths, in every configuration.

mod report;

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use vsnoop_guest::control::Command;
use vsnoop_guest::web;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::Stage;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::lab::Lab;
use super::request::{self, Exchange};
use super::rounds::Trial;
use super::spent::Clock;
use super::ways::{Ways, settle};
use crate::results::Sample;

pub const RUNNER: Runner = Runner {
    name: "uploads",
    run,
    tables: report::tables,
    figures: report::figures,
    goals: None,
    plots: report::plots,
    difference: |_| None,
};

/// The period of the VM's own load. It differs from the quota's period, so that load and quota do
/// not stay in phase.
const LOAD_PERIOD_MS: u32 = 70;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Small requests of a round.
    gets: usize,
    /// The least and the longest pause after attaching, in which background work of `attach` ends
    /// and the quota is refilled.
    pause_ms: [u64; 2],
}

/// Measures what a plan asks for.
pub fn run(task: Task) -> Result<()> {
    let settings = task.plan.settings()?;
    request::require_curl()?;
    let configurations = task.plan.configurations()?;
    let parts = guest::Options { web: true, ..guest::Options::default() };
    on_stages(task, parts, &mut Uploads { configurations, settings, client: None })
}

struct Uploads {
    configurations: Vec<Configuration>,
    settings: Settings,
    client: Option<Client>,
}

/// The client's side of a stage.
struct Client {
    ways: Ways,
    capture: Capture,
}

impl Uploads {
    fn exchange<'a>(
        &'a self,
        ground: &'a Ground,
        configuration: Configuration,
    ) -> Result<Exchange<'a>> {
        let (stage, machine) = (ground.stage, ground.machine);
        let client = self.client.as_ref().context("no stage was booted")?;
        let way = client.ways.way(stage, configuration, machine)?;
        let scratch = ground.lab.session.scratch();
        Ok(Exchange { stage, capture: &client.capture, scratch, machine, way })
    }
}

impl Measure for Uploads {
    fn booted(&mut self, lab: &mut Lab, stage: &Stage) -> Result<()> {
        for machine in 0..stage.vm_count() {
            stage.vm(machine).command(&Command::Web)?;
        }
        let ways = Ways::open(&mut lab.session, stage, &self.configurations, web::PORT)?;
        self.client = Some(Client { ways, capture: Capture::start(stage.client())? });
        Ok(())
    }

    fn enter(&mut self, ground: &Ground) -> Result<()> {
        for &configuration in &self.configurations {
            let exchange = self.exchange(ground, configuration)?;
            exchange.make(web::PAGE_BYTES, 1).context("the first request of a cell")?;
        }
        settle(ground.stage)
    }

    fn load_period_ms(&self) -> u32 {
        LOAD_PERIOD_MS
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let [least, most] = self.settings.pause_ms;
        std::thread::sleep(Duration::from_millis(fastrand::u64(least..=most)));
        let exchange = self.exchange(ground, trial.configuration)?;
        let clock = || Clock::read(ground.stage, ground.machine);
        let before = clock()?;
        let (mut samples, after) =
            exchange.make_and(trial.size_bytes, self.settings.gets, clock)?;
        // Small requests come in batches.
        if let [sample] = &mut samples[..] {
            sample.values = after.since(&before);
        }
        Ok(samples)
    }

    fn leave(&mut self) {
        self.client = None;
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::declared::Declaration;
    use crate::experiment::definition::Options;
    use crate::results::Cell;
    use crate::results::incast::CongestionControl;

    #[test]
    fn every_cell_is_measured_once_and_bbr_beside_all_configurations_in_one() {
        let plan = Declaration::find("uploads").unwrap().plan(&Options::default()).unwrap();
        let machines = plan.machines();
        let cells: Vec<_> = machines.iter().flat_map(|machines| &machines.cells).collect();
        let distinct = cells
            .iter()
            .enumerate()
            .all(|(number, (cell, _))| cells[..number].iter().all(|(other, _)| other != cell));
        assert!(distinct && cells.len() == 24, "{} cells", cells.len());
        let is_bbr = |cell: &Cell| cell.congestion_control == Some(CongestionControl::Bbr);
        let all_of_bbr: Vec<_> = cells
            .iter()
            .filter(|(cell, part)| is_bbr(cell) && part.configurations.len() == 4)
            .map(|(cell, _)| cell.path_rtt_ms)
            .collect();
        assert_eq!(all_of_bbr, [20.0]);
        // Options bring them to others.
        let options = Options {
            congestion_controls: vec![CongestionControl::Bbr],
            path_rtts_ms: vec![5.0],
            ..Options::default()
        };
        let plan = Declaration::find("uploads").unwrap().plan(&options).unwrap();
        let parts: Vec<_> =
            plan.iter().map(|part| (part.configurations.len(), part.shares.len())).collect();
        assert_eq!(parts, [(4, 3)]);
    }
}
