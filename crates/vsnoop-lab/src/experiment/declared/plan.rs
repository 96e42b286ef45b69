//! What a run measures: every combination of machines, load, path and congestion control is a cell.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use vsnoop_testbed::stage::path::PathLink;
use vsnoop_testbed::vm::Share;

use crate::experiment::configuration::Configuration;
use crate::experiment::definition::Options;
use crate::results::Cell;
use crate::results::incast::CongestionControl;

const MOST_VMS: usize = 16;
const LONGEST_RTT_MS: f64 = 1000.0;
const WORST_LOSS_PERCENT: f64 = 5.0;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What is compared, by names; those of VMs on a stage are `Configuration`'s.
    pub configurations: Vec<String>,
    /// Machines that share the core.
    pub vms: Vec<usize>,
    #[serde(default = "slices")]
    pub shares: Vec<Share>,
    pub loads: Vec<f64>,
    /// Not every number of machines with every load: all numbers with the first load, all loads
    /// with the first number.
    #[serde(default)]
    pub one_at_a_time: bool,
    #[serde(default = "near")]
    pub path_rtts_ms: Vec<f64>,
    #[serde(default)]
    pub path_loss_percent: f64,
    /// The rate of paths with a round trip, and the queue before it.
    pub path_link: Option<PathLink>,
    #[serde(default = "cubic")]
    pub congestion_controls: Vec<CongestionControl>,
    pub sizes: Vec<Size>,
    /// The longest time of a cell's measurements.
    pub budget_s: Option<u64>,
    /// What only the runner understands.
    #[serde(default)]
    pub settings: toml::Table,
}

/// A size, and how many rounds it has in each cell.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub bytes: u64,
    pub rounds: usize,
}

/// What replaces parts of a plan.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    configurations: Option<Vec<String>>,
    vms: Option<Vec<usize>>,
    shares: Option<Vec<Share>>,
    loads: Option<Vec<f64>>,
    path_rtts_ms: Option<Vec<f64>>,
    congestion_controls: Option<Vec<CongestionControl>>,
    sizes: Option<Vec<Size>>,
    budget_s: Option<u64>,
    /// Single settings.
    #[serde(default)]
    settings: toml::Table,
}

/// Machines that are booted once, and the cells that are measured with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    pub vms: usize,
    pub share: Share,
    pub cells: Vec<Cell>,
}

fn slices() -> Vec<Share> {
    vec![Share::Slices]
}

fn near() -> Vec<f64> {
    vec![0.0]
}

fn cubic() -> Vec<CongestionControl> {
    vec![CongestionControl::Cubic]
}

/// Replaces what is given.
fn replace<T: Clone>(value: &mut Vec<T>, by: &[T]) {
    if !by.is_empty() {
        *value = by.to_vec();
    }
}

impl Plan {
    pub fn change(&mut self, changes: &Changes) {
        let Changes { configurations, vms, shares, loads, .. } = changes;
        let Changes { path_rtts_ms, congestion_controls, sizes, .. } = changes;
        replace(&mut self.configurations, configurations.as_deref().unwrap_or_default());
        replace(&mut self.vms, vms.as_deref().unwrap_or_default());
        replace(&mut self.shares, shares.as_deref().unwrap_or_default());
        replace(&mut self.loads, loads.as_deref().unwrap_or_default());
        replace(&mut self.path_rtts_ms, path_rtts_ms.as_deref().unwrap_or_default());
        replace(&mut self.congestion_controls, congestion_controls.as_deref().unwrap_or_default());
        replace(&mut self.sizes, sizes.as_deref().unwrap_or_default());
        self.budget_s = changes.budget_s.or(self.budget_s);
        self.settings.extend(changes.settings.clone());
    }

    /// What options of the command choose.
    pub fn choose(&mut self, options: &Options) -> Result<()> {
        replace(&mut self.vms, &options.vms);
        replace(&mut self.shares, &options.shares);
        replace(&mut self.loads, &options.loads);
        replace(&mut self.path_rtts_ms, &options.path_rtts_ms);
        replace(&mut self.congestion_controls, &options.congestion_controls);
        self.path_link = options.path_link.or(self.path_link);
        self.path_loss_percent = options.path_loss_percent.unwrap_or(self.path_loss_percent);
        for asked in &options.configurations {
            let known = self.configurations.join(", ");
            ensure!(
                self.configurations.contains(asked),
                "there is no configuration {asked:?}; there are: {known}"
            );
        }
        let asked = &options.configurations;
        self.configurations.retain(|name| asked.is_empty() || asked.contains(name));
        for asked in &options.sizes_bytes {
            ensure!(
                self.sizes.iter().any(|size| size.bytes == *asked),
                "nothing of {asked} bytes is measured here"
            );
        }
        let asked = &options.sizes_bytes;
        self.sizes.retain(|size| asked.is_empty() || asked.contains(&size.bytes));
        if let Some(rounds) = options.rounds {
            ensure!(rounds > 0, "an experiment needs at least one round");
            self.sizes.iter_mut().for_each(|size| size.rounds = rounds);
            // Rounds that were asked for are all measured.
            self.budget_s = None;
        }
        self.check()
    }

    fn check(&self) -> Result<()> {
        for vms in &self.vms {
            ensure!((1..=MOST_VMS).contains(vms), "{vms} VMs: 1 to {MOST_VMS} are possible");
        }
        for load in &self.loads {
            ensure!((0.0..=1.0).contains(load), "a load of {load}: 0.0 to 1.0 is possible");
        }
        for rtt in &self.path_rtts_ms {
            ensure!(
                (0.0..=LONGEST_RTT_MS).contains(rtt),
                "a path RTT of {rtt} ms: 0 to {LONGEST_RTT_MS} is possible"
            );
        }
        let loss = self.path_loss_percent;
        ensure!(
            (0.0..=WORST_LOSS_PERCENT).contains(&loss),
            "a path that loses {loss} %: 0 to {WORST_LOSS_PERCENT} is possible"
        );
        let dctcp = self.congestion_controls.contains(&CongestionControl::Dctcp);
        ensure!(!dctcp, "no path of this experiment marks packets for dctcp");
        Ok(())
    }

    /// Machines and the cells to measure with them, in the order of the file.
    pub fn machines(&self) -> Vec<Machines> {
        let mut all = Vec::new();
        for &vms in &self.vms {
            for &share in &self.shares {
                all.push(Machines { vms, share, cells: self.cells(vms, share) });
            }
        }
        all
    }

    fn cells(&self, vms: usize, share: Share) -> Vec<Cell> {
        let mut cells = Vec::new();
        let first = |load: &f64| Some(load) == self.loads.first();
        let with_all_loads = !self.one_at_a_time || Some(&vms) == self.vms.first();
        for &load in self.loads.iter().filter(|load| with_all_loads || first(load)) {
            for &path_rtt_ms in &self.path_rtts_ms {
                let far = path_rtt_ms > 0.0;
                for &control in &self.congestion_controls {
                    cells.push(Cell {
                        vms,
                        load,
                        path_rtt_ms,
                        path_loss_percent: self.path_loss_percent,
                        path_link: self.path_link.filter(|_| far),
                        share: Some(share),
                        congestion_control: Some(control),
                        ..Cell::default()
                    });
                }
            }
        }
        cells
    }

    pub fn sizes(&self) -> Vec<(u64, usize)> {
        self.sizes.iter().map(|size| (size.bytes, size.rounds)).collect()
    }

    pub fn budget(&self) -> Duration {
        self.budget_s.map_or(Duration::MAX, Duration::from_secs)
    }

    /// The configurations, where they are those of VMs on a stage.
    pub fn configurations(&self) -> Result<Vec<Configuration>> {
        self.configurations.iter().map(|name| Configuration::find(name)).collect()
    }

    /// What only the runner understands, as its own type.
    pub fn settings<T: DeserializeOwned>(&self) -> Result<T> {
        self.settings.clone().try_into().context("the settings of the experiment's file")
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::Declaration;
    use super::*;

    const FILE: &str = r#"
        name = "test"
        about = "a test"
        title = "Test"
        runner = "none"
        what_to_see = ""
        method = ""
        refuses = ["share"]
        [takes]
        full_min = 2
        quick_min = 1
        [plan]
        configurations = ["off", "vsnoop"]
        vms = [1, 3]
        loads = [0.6]
        path_rtts_ms = [0, 20]
        path_link = { path_rate_mbit = 200, path_queue_bytes = 1000000 }
        sizes = [{ bytes = 1000, rounds = 5 }, { bytes = 2000, rounds = 5 }]
        [plan.settings]
        pings = 10
        gap_ms = 5
        [quick]
        vms = [3]
        [quick.settings]
        pings = 2
    "#;

    fn file() -> Declaration {
        toml::from_str(FILE).unwrap()
    }

    #[test]
    fn a_quick_run_changes_what_its_table_names_and_nothing_else() {
        let quick = Options { quick: true, ..Options::default() };
        let (full, quick) =
            (file().plan(&Options::default()).unwrap(), file().plan(&quick).unwrap());
        assert_eq!((full.machines().len(), quick.machines().len()), (2, 1));
        assert_eq!(quick.machines()[0].vms, 3);
        let number = |plan: &Plan, name: &str| plan.settings[name].as_integer();
        assert_eq!((number(&full, "pings"), number(&quick, "pings")), (Some(10), Some(2)));
        assert_eq!(number(&quick, "gap_ms"), Some(5));
    }

    #[test]
    fn one_at_a_time_combines_only_the_first_number_of_machines_with_all_loads() {
        let mut plan = file().plan(&Options::default()).unwrap();
        (plan.loads, plan.path_rtts_ms, plan.one_at_a_time) = (vec![0.6, 0.8], vec![0.0], true);
        let machines = plan.machines();
        let loads = |number: usize| -> Vec<f64> {
            machines[number].cells.iter().map(|cell| cell.load).collect()
        };
        assert_eq!((machines[0].vms, loads(0)), (1, vec![0.6, 0.8]));
        assert_eq!((machines[1].vms, loads(1)), (3, vec![0.6]));
    }

    #[test]
    fn only_far_paths_have_a_rate_and_cells_are_all_combinations() {
        let controls = vec![CongestionControl::Cubic, CongestionControl::Bbr];
        let options = Options { congestion_controls: controls, ..Options::default() };
        let machines = file().plan(&options).unwrap().machines();
        assert_eq!(machines[0].cells.len(), 4);
        for cell in &machines[0].cells {
            assert_eq!(cell.path_link.is_some(), cell.path_rtt_ms > 0.0);
        }
    }

    #[test]
    fn options_choose_and_what_cannot_be_measured_is_refused() {
        let chosen = Options {
            configurations: vec!["vsnoop".into()],
            sizes_bytes: vec![2000],
            rounds: Some(1),
            ..Options::default()
        };
        let plan = file().plan(&chosen).unwrap();
        assert_eq!((plan.configurations.len(), plan.sizes()), (1, vec![(2000, 1)]));
        for impossible in [
            Options { vms: vec![0], ..Options::default() },
            Options { loads: vec![60.0], ..Options::default() },
            Options { path_rtts_ms: vec![-1.0], ..Options::default() },
            Options { path_loss_percent: Some(6.0), ..Options::default() },
            Options { sizes_bytes: vec![7], ..Options::default() },
            Options { rounds: Some(0), ..Options::default() },
            Options { configurations: vec!["strict".into()], ..Options::default() },
            Options { shares: vec![Share::Slices], ..Options::default() },
        ] {
            assert!(file().plan(&impossible).is_err(), "{impossible:?}");
        }
    }
}
