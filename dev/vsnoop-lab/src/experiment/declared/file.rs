//! A file that declares an experiment.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::parts::Parts;
use super::plan::Changes;
use crate::experiment::options::Options;
use crate::report::Report;
use crate::results::record::Record;

/// An experiment by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub name: String,
    /// One line, for `vsnoop-lab list`.
    pub about: String,
    /// The code that measures.
    pub runner: String,
    /// Makes the results again, if it is not `make lab RUN=NAME`.
    command: Option<String>,
    pub takes: Takes,
    pub report: Report,
    /// The runner reads it: a [`Plan`](super::plan::Plan), where VMs stand on a stage.
    plan: toml::Table,
    /// The parts of such a plan, if it has some: what is different in each.
    #[serde(default, rename = "part")]
    parts: Vec<Changes>,
    /// Changes of a quick run.
    #[serde(default)]
    quick: Changes,
    /// The parts of a quick run.
    #[serde(default, rename = "quick_part")]
    quick_parts: Vec<Changes>,
    /// Options of the command that make no sense here.
    #[serde(default)]
    refuses: Vec<String>,
    /// Options that only this and few other experiments take.
    #[serde(default)]
    takes_too: Vec<String>,
}

/// Minutes that a run takes, for an estimate before it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Takes {
    pub full_min: u64,
    pub quick_min: u64,
}

/// A run: what is to be measured, and where samples go.
pub struct Task<'a> {
    pub experiment: &'static Experiment,
    pub options: &'a Options,
    pub record: &'a mut Record,
}

impl Task<'_> {
    pub fn plan(&self) -> Result<Parts> {
        self.experiment.plan(self.options)
    }
}

/// The code that runs experiments of a kind.
pub struct Runner {
    /// Files name it so.
    pub name: &'static str,
    pub run: fn(Task) -> Result<()>,
}

/// Options that an experiment takes only if it says so.
const RARE: [&str; 2] = ["part", "senders"];

impl Experiment {
    pub fn command(&self) -> String {
        self.command.clone().unwrap_or_else(|| format!("make lab RUN={}", self.name))
    }

    /// The plan of a run with these options.
    pub fn plan(&self, options: &Options) -> Result<Parts> {
        let (mut plan, mut parts) = (self.own_plan::<super::plan::Plan>()?, &self.parts);
        if options.quick {
            plan.change(&self.quick);
            parts = &self.quick_parts;
        }
        let mut plan = Parts::new(plan, parts);
        plan.choose(options).with_context(|| format!("options of {}", self.name))?;
        Ok(plan)
    }

    /// The plan as a runner's own type.
    pub fn own_plan<P: DeserializeOwned>(&self) -> Result<P> {
        self.plan.clone().try_into().with_context(|| format!("the plan of {}", self.name))
    }

    /// Refuses options that the experiment does not take.
    pub fn check(&self, options: &Options) -> Result<()> {
        for (name, is_given) in options.given() {
            let has = |names: &[String]| names.iter().any(|one| one == name);
            let is_foreign = RARE.contains(&name) && !has(&self.takes_too);
            let refused = has(&self.refuses) || is_foreign;
            ensure!(!(is_given && refused), "{} does not take --{name}", self.name);
        }
        ensure!(options.rounds != Some(0), "an experiment needs at least one round");
        Ok(())
    }
}
