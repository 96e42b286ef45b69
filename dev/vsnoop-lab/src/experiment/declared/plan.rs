//! A plan: every combination of machines, load, path and congestion control is a cell.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use vsnoop_testbed::stage::path::PathLink;
use vsnoop_testbed::vm::Share;

use crate::experiment::configuration::Configuration;
use crate::experiment::rounds::Rounds;
use crate::results::Cell;
use crate::results::incast::CongestionControl;

const MOST_VMS: usize = 16;
const LONGEST_RTT_MS: f64 = 1000.0;
const WORST_LOSS_PERCENT: f64 = 5.0;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Names of the compared; those of VMs on a stage are `Configuration`'s.
    pub configurations: Vec<String>,
    /// Machines that share the core.
    pub vms: Vec<usize>,
    #[serde(default = "slices")]
    pub shares: Vec<Share>,
    /// The load of each machine; `inf` is work without end.
    pub loads: Vec<f64>,
    /// Loads are of the machine's quota, if it has one, and not of a core.
    #[serde(default)]
    pub loads_of_quota: bool,
    #[serde(default = "near")]
    pub path_rtts_ms: Vec<f64>,
    #[serde(default)]
    pub path_loss_percent: f64,
    /// The rate of paths with a round trip, and the queue before it.
    pub path_link: Option<PathLink>,
    /// The command asks for it: the rate and queue of all paths.
    #[serde(skip)]
    pub asked_link: Option<PathLink>,
    #[serde(default = "cubic")]
    pub congestion_controls: Vec<CongestionControl>,
    #[serde(default)]
    pub unnamed: Vec<Unnamed>,
    pub sizes: Vec<Size>,
    /// The longest time of a cell's measurements.
    pub budget_s: Option<u64>,
    /// Settings that only the runner understands.
    #[serde(default)]
    pub settings: toml::Table,
}

/// Properties that cells and figures name only where the command asks for it: published names do
/// not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unnamed {
    Share,
    CongestionControl,
}

/// A size, and how many rounds it has in each cell.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub bytes: u64,
    pub rounds: usize,
}

/// Replaces parts of a plan, as far as they are given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Changes {
    configurations: Vec<String>,
    vms: Vec<usize>,
    shares: Vec<Share>,
    loads: Vec<f64>,
    path_rtts_ms: Vec<f64>,
    congestion_controls: Vec<CongestionControl>,
    sizes: Vec<Size>,
    budget_s: Option<u64>,
    /// Single settings.
    settings: toml::Table,
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
        replace(&mut self.configurations, configurations);
        replace(&mut self.vms, vms);
        replace(&mut self.shares, shares);
        replace(&mut self.loads, loads);
        replace(&mut self.path_rtts_ms, path_rtts_ms);
        replace(&mut self.congestion_controls, congestion_controls);
        replace(&mut self.sizes, sizes);
        self.budget_s = changes.budget_s.or(self.budget_s);
        self.settings.extend(changes.settings.clone());
    }

    pub fn set_rounds(&mut self, rounds: usize) {
        self.sizes.iter_mut().for_each(|size| size.rounds = rounds);
    }

    pub fn check(&self) -> Result<()> {
        for vms in &self.vms {
            ensure!((1..=MOST_VMS).contains(vms), "{vms} VMs: 1 to {MOST_VMS} are possible");
        }
        let mosts = self.shares.iter().map(|share| 1.0 / self.unit_of_load(*share));
        let most = mosts.fold(f64::INFINITY, f64::min);
        for load in &self.loads {
            let possible = (0.0..=most).contains(load) || *load == f64::INFINITY;
            ensure!(possible, "a load of {load}: 0.0 to {most} is possible");
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
        Ok(())
    }

    /// The part of a core that is a load of 1.
    pub fn unit_of_load(&self, share: Share) -> f64 {
        match share {
            Share::Quota { percent } if self.loads_of_quota => f64::from(percent) / 100.0,
            _ => 1.0,
        }
    }

    pub fn cells(&self, vms: usize, share: Share) -> Vec<Cell> {
        let names = |what| !self.unnamed.contains(&what);
        let quota = match share {
            Share::Quota { percent } => Some(percent),
            Share::Fair { .. } | Share::Slices => None,
        };
        let mut cells = Vec::new();
        for load in &self.loads {
            let load = load.min(1.0 / self.unit_of_load(share));
            for &path_rtt_ms in &self.path_rtts_ms {
                let far = path_rtt_ms > 0.0;
                for &control in &self.congestion_controls {
                    cells.push(Cell {
                        vms,
                        load,
                        path_rtt_ms,
                        path_loss_percent: self.path_loss_percent,
                        path_link: self.asked_link.or(self.path_link.filter(|_| far)),
                        quota_percent: quota.filter(|_| !names(Unnamed::Share)),
                        share: names(Unnamed::Share).then_some(share),
                        congestion_control: names(Unnamed::CongestionControl).then_some(control),
                        ..Cell::default()
                    });
                }
            }
        }
        cells
    }

    /// The rounds of each cell, where the configurations are those of VMs on a stage.
    pub fn rounds(&self) -> Result<Rounds<Configuration>> {
        self.rounds_of(Configuration::find)
    }

    /// The rounds of each cell; `find` knows the configurations.
    pub fn rounds_of<T>(&self, find: fn(&str) -> Result<T>) -> Result<Rounds<T>> {
        let configurations = self.configurations.iter().map(|name| find(name));
        Ok(Rounds {
            configurations: configurations.collect::<Result<_>>()?,
            plan: self.sizes.iter().map(|size| (size.bytes, size.rounds)).collect(),
            budget: self.budget_s.map_or(Duration::MAX, Duration::from_secs),
        })
    }
}
