//! The parts of a plan, what options of the command choose of them, and the machines that they
//! need.

use anyhow::{Result, ensure};
use serde::de::DeserializeOwned;
use vsnoop_testbed::vm::Share;

use super::plan::{Changes, Plan, Unnamed};
use crate::experiment::configuration::Configuration;
use crate::experiment::options::Options;
use crate::results::Cell;

/// The plan of a run, or several plans that differ in some of it.
#[derive(Clone, Debug)]
pub struct Parts(Vec<Plan>);

/// Machines that are booted once, and the cells that are measured with them, each with its plan.
#[derive(Clone, Debug)]
pub struct Machines<'a> {
    pub vms: usize,
    pub share: Share,
    pub cells: Vec<(Cell, &'a Plan)>,
}

impl Machines<'_> {
    /// The part of a core that is a load of 1.
    pub fn unit_of_load(&self) -> f64 {
        self.cells.first().map_or(1.0, |(_, part)| part.unit_of_load(self.share))
    }
}

impl Parts {
    /// A part is the plan with its changes; without any, the plan is the only part.
    pub fn new(plan: Plan, changes: &[Changes]) -> Self {
        if changes.is_empty() {
            return Self(vec![plan]);
        }
        let part = |changes| {
            let mut part = plan.clone();
            part.change(changes);
            part
        };
        Self(changes.iter().map(part).collect())
    }

    /// Applies options of the command, one after the other. A value in which the parts differ
    /// chooses the parts that have it; one that none has is measured as the first part would be.
    pub fn choose(&mut self, options: &Options) -> Result<()> {
        let Options { vms, shares, loads, path_rtts_ms: rtts, .. } = options;
        let controls = &options.congestion_controls;
        self.pick(vms, |part| &mut part.vms);
        self.pick(shares, |part| &mut part.shares);
        self.pick(loads, |part| &mut part.loads);
        self.pick(rtts, |part| &mut part.path_rtts_ms);
        self.pick(controls, |part| &mut part.congestion_controls);
        self.choose_configurations(&options.configurations)?;
        self.choose_sizes(&options.sizes_bytes)?;
        for part in &mut self.0 {
            part.asked_link = options.path_link();
            part.unnamed.retain(|what| match what {
                Unnamed::Share => shares.is_empty(),
                Unnamed::CongestionControl => controls.is_empty(),
            });
            part.path_loss_percent = options.path_loss_percent.unwrap_or(part.path_loss_percent);
            if let Some(rounds) = options.rounds {
                part.set_rounds(rounds);
                // Rounds that were asked for are all measured.
                part.budget_s = None;
            }
            part.check()?;
        }
        Ok(())
    }

    fn pick<T: Clone + PartialEq>(&mut self, asked: &[T], field: fn(&mut Plan) -> &mut Vec<T>) {
        if asked.is_empty() {
            return;
        }
        let values: Vec<_> = self.0.iter_mut().map(|part| field(part).clone()).collect();
        if values.windows(2).all(|pair| pair[0] == pair[1]) {
            self.0.iter_mut().for_each(|part| *field(part) = asked.to_vec());
            return;
        }
        let all = std::mem::take(&mut self.0);
        for value in asked {
            let has = |number: &usize| values[*number].contains(value);
            let mut chosen: Vec<_> = (0..all.len()).filter(has).collect();
            if chosen.is_empty() {
                chosen.push(0);
            }
            for number in chosen {
                let mut part = all[number].clone();
                *field(&mut part) = vec![value.clone()];
                self.0.push(part);
            }
        }
    }

    fn choose_configurations(&mut self, asked: &[String]) -> Result<()> {
        let known = self.names();
        for name in asked {
            let all = known.join(", ");
            ensure!(known.contains(name), "there is no configuration {name:?}; there are: {all}");
        }
        for part in self.0.iter_mut().filter(|_| !asked.is_empty()) {
            part.configurations.retain(|name| asked.contains(name));
        }
        self.0.retain(|part| !part.configurations.is_empty());
        Ok(())
    }

    fn choose_sizes(&mut self, asked: &[u64]) -> Result<()> {
        let known = self.sizes();
        for bytes in asked {
            ensure!(known.contains(bytes), "nothing of {bytes} bytes is measured here");
        }
        for part in self.0.iter_mut().filter(|_| !asked.is_empty()) {
            part.sizes.retain(|size| asked.contains(&size.bytes));
        }
        self.0.retain(|part| asked.is_empty() || !part.sizes.is_empty());
        ensure!(!self.0.is_empty(), "no part of the experiment has all that was asked for");
        Ok(())
    }

    pub fn first_cell(&self) -> Option<Cell> {
        Some(self.machines().first()?.cells.first()?.0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Plan> {
        self.0.iter()
    }

    /// Machines and the cells to measure with them, in the order of the parts; parts share
    /// machines.
    pub fn machines(&self) -> Vec<Machines<'_>> {
        let mut all: Vec<Machines> = Vec::new();
        for part in &self.0 {
            let ways =
                part.vms.iter().flat_map(|vms| part.shares.iter().map(move |one| (vms, one)));
            for (&vms, &share) in ways {
                let cells = part.cells(vms, share).into_iter().map(|cell| (cell, part));
                match all.iter_mut().find(|there| (there.vms, there.share) == (vms, share)) {
                    Some(there) => there.cells.extend(cells),
                    None => all.push(Machines { vms, share, cells: cells.collect() }),
                }
            }
        }
        all
    }

    /// Rounds of all cells and sizes, where time cuts none.
    pub fn round_count(&self) -> usize {
        let cells = self.machines().into_iter().flat_map(|machines| machines.cells);
        cells.flat_map(|(_, part)| part.sizes.iter().map(|size| size.rounds)).sum()
    }

    /// The bytes of all sizes.
    pub fn sizes(&self) -> Vec<u64> {
        distinct(self.0.iter().flat_map(|part| part.sizes.iter().map(|size| size.bytes)))
    }

    fn names(&self) -> Vec<String> {
        distinct(self.0.iter().flat_map(|part| part.configurations.iter().cloned()))
    }

    /// The configurations of all parts, where they are those of VMs on a stage.
    pub fn configurations(&self) -> Result<Vec<Configuration>> {
        self.names().iter().map(|name| Configuration::find(name)).collect()
    }

    /// The settings of the runner, as its own type: the same for all parts.
    pub fn settings<T: DeserializeOwned>(&self) -> Result<T> {
        let first = self.0.first();
        let settings = first.map(|part| part.settings.clone()).unwrap_or_default();
        settings.try_into().map_err(|error| anyhow::anyhow!("the settings of the file: {error}"))
    }
}

/// In the order in which they come.
pub fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::super::file::Experiment;
    use super::*;
    use crate::results::incast::{CongestionControl, Part};

    const FILE: &str = r#"
        name = "test"
        about = "a test"
        runner = "none"
        refuses = ["share"]
        [report]
        title = "Test"
        what_to_see = ""
        method = ""
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

    fn file() -> Experiment {
        toml::from_str(FILE).unwrap()
    }

    #[test]
    fn a_quick_run_changes_what_its_table_names_and_nothing_else() {
        let quick = Options { quick: true, ..Options::default() };
        let (full, quick) =
            (file().plan(&Options::default()).unwrap(), file().plan(&quick).unwrap());
        assert_eq!((full.machines().len(), quick.machines().len()), (2, 1));
        assert_eq!(quick.machines()[0].vms, 3);
        let number = |parts: &Parts, name: &str| parts.0[0].settings[name].as_integer();
        assert_eq!((number(&full, "pings"), number(&quick, "pings")), (Some(10), Some(2)));
        assert_eq!(number(&quick, "gap_ms"), Some(5));
    }

    /// The machines, loads and sizes of each part.
    fn parts(options: &Options) -> Vec<(Vec<usize>, Vec<f64>, Vec<u64>)> {
        let text = format!(
            "{FILE}
            [[part]]
            loads = [0.6]
            sizes = [{{ bytes = 1000, rounds = 5 }}]
            [[part]]
            vms = [5]
            loads = [1.0]"
        );
        let file: Experiment = toml::from_str(&text).unwrap();
        let plan = file.plan(options).unwrap();
        let part = |part: &Plan| {
            let sizes = part.sizes.iter().map(|size| size.bytes).collect();
            (part.vms.clone(), part.loads.clone(), sizes)
        };
        plan.iter().map(part).collect()
    }

    #[test]
    fn a_value_chooses_the_parts_that_have_it_else_it_is_measured_as_the_first_one() {
        let options = Options::default();
        let vms = |vms: &[usize]| Options { vms: vms.to_vec(), ..options.clone() };
        let first = (vec![1, 3], vec![0.6], vec![1000]);
        let last = (vec![5], vec![1.0], vec![1000, 2000]);
        assert_eq!(parts(&options), [first.clone(), last.clone()]);
        let four = (vec![4], vec![0.6], vec![1000]);
        assert_eq!(parts(&vms(&[5, 4])), [last.clone(), four]);
        let load = Options { loads: vec![1.0], ..options.clone() };
        assert_eq!(parts(&load), [last]);
        let both = Options { loads: vec![0.0, 1.0], ..vms(&[5]) };
        assert_eq!(parts(&both), [(vec![5], vec![0.0, 1.0], vec![1000, 2000])]);
        let size = Options { sizes_bytes: vec![2000], ..options.clone() };
        assert_eq!(parts(&size), [(vec![5], vec![1.0], vec![2000])]);
        // Both have them.
        let rtt = Options { path_rtts_ms: vec![5.0], ..options.clone() };
        assert_eq!(parts(&rtt).len(), 2);
        let quick = Options { quick: true, ..options };
        assert_eq!(parts(&quick), [(vec![3], vec![0.6], vec![1000, 2000])], "it has none");
    }

    #[test]
    fn parts_of_the_same_machines_are_measured_on_them() {
        let text = format!("{FILE}\n[[part]]\nloads = [0.4]\n[[part]]\nloads = [0.8]\nvms = [3]");
        let file: Experiment = toml::from_str(&text).unwrap();
        let plan = file.plan(&Options { path_rtts_ms: vec![0.0], ..Options::default() }).unwrap();
        let loads = |machines: &Machines| {
            let loads = machines.cells.iter().map(|(cell, _)| cell.load);
            (machines.vms, loads.collect::<Vec<_>>())
        };
        let all: Vec<_> = plan.machines().iter().map(loads).collect();
        assert_eq!(all, [(1, vec![0.4]), (3, vec![0.4, 0.8])]);
    }

    #[test]
    fn only_far_paths_have_a_rate_and_cells_are_all_combinations() {
        let controls = vec![CongestionControl::Cubic, CongestionControl::Bbr];
        let options = Options { congestion_controls: controls, ..Options::default() };
        let plan = file().plan(&options).unwrap();
        let machines = plan.machines();
        assert_eq!(machines[0].cells.len(), 4);
        for (cell, _) in &machines[0].cells {
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
        let plan = &file().plan(&chosen).unwrap().0[0];
        let rounds = plan.rounds().unwrap();
        assert_eq!((rounds.configurations.len(), rounds.plan), (1, vec![(2000, 1)]));
        for impossible in [
            Options { vms: vec![0], ..Options::default() },
            Options { loads: vec![60.0], ..Options::default() },
            Options { path_rtts_ms: vec![-1.0], ..Options::default() },
            Options { path_loss_percent: Some(6.0), ..Options::default() },
            Options { sizes_bytes: vec![7], ..Options::default() },
            Options { rounds: Some(0), ..Options::default() },
            Options { parts: vec![Part::Long], ..Options::default() },
            Options { configurations: vec!["strict".into()], ..Options::default() },
            Options { shares: vec![Share::Slices], ..Options::default() },
        ] {
            let refused = file().check(&impossible).and_then(|()| file().plan(&impossible));
            assert!(refused.is_err(), "{impossible:?}");
        }
    }
}
