//! A file that declares an experiment.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::parts::Parts;
use super::plan::{Changes, Plan};
use super::runner::{Runner, lab_command};
use crate::experiment::definition::{Experiment, Options, Takes};
use crate::experiment::goals::{self, Goal};
use crate::results::record::Record;
use crate::results::report::{Against, Paper, Words};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    pub name: String,
    /// One line, for `vsnoop-lab list`.
    pub about: String,
    pub title: String,
    pub runner: String,
    /// Makes the results again, if it is not `make lab RUN=NAME`.
    pub command: Option<String>,
    /// What the tables and plots show.
    pub what_to_see: String,
    pub method: String,
    pub takes: Takes,
    pub paper: Option<Paper>,
    /// The plot that is like the paper's figure.
    pub plot: Option<String>,
    /// Bounds of figures.
    #[serde(default)]
    pub goals: Vec<Goal>,
    pub plan: Plan,
    /// The parts of the plan, if it has some: what is different in each.
    #[serde(default, rename = "part")]
    pub parts: Vec<Changes>,
    /// What is different with `--quick`.
    #[serde(default)]
    pub quick: Changes,
    /// The parts of a quick run.
    #[serde(default, rename = "quick_part")]
    pub quick_parts: Vec<Changes>,
    /// Options of the command that make no sense here: `vms`, `load`, `share`, `path`, `path-loss`,
    /// `congestion-control`, `size`.
    #[serde(default)]
    pub refuses: Vec<String>,
}

impl Declaration {
    pub fn experiment(
        &'static self,
        runner: &'static Runner,
        run: fn(&Options, &mut Record) -> Result<()>,
    ) -> Experiment {
        let plot = self.plot.as_deref();
        let against = |paper| Against { paper, difference: &runner.difference, plot };
        let command = || lab_command(&self.name);
        let words = Words {
            title: &self.title,
            what_to_see: &self.what_to_see,
            method: &self.method,
            command: self.command.as_deref().unwrap_or_else(command),
            tables: runner.tables,
            figures: runner.figures,
            goals: goals::judge(&self.goals).or(runner.goals),
            papers: self.paper.iter().map(against).collect::<Vec<_>>().leak(),
            plots: runner.plots,
        };
        Experiment { name: &self.name, about: &self.about, words, takes: self.takes, run }
    }

    /// The plan of a run with these options.
    pub fn plan(&self, options: &Options) -> Result<Parts> {
        self.refuse(options)?;
        let (mut plan, mut parts) = (self.plan.clone(), &self.parts);
        if options.quick {
            plan.change(&self.quick);
            parts = &self.quick_parts;
        }
        let mut plan = Parts::new(plan, parts);
        plan.choose(options).with_context(|| format!("options of {}", self.name))?;
        Ok(plan)
    }

    fn refuse(&self, options: &Options) -> Result<()> {
        let path = !options.path_rtts_ms.is_empty()
            || options.path_loss_percent.is_some()
            || options.path_link.is_some();
        for (name, given) in [
            ("vms", !options.vms.is_empty()),
            ("load", !options.loads.is_empty()),
            ("share", !options.shares.is_empty()),
            ("path", path),
            ("path-loss", options.path_loss_percent.is_some()),
            ("congestion-control", !options.congestion_controls.is_empty()),
            ("size", !options.sizes_bytes.is_empty()),
        ] {
            let refused = self.refuses.iter().any(|refused| refused == name);
            ensure!(!(given && refused), "{} does not take --{name}", self.name);
        }
        Ok(())
    }
}
