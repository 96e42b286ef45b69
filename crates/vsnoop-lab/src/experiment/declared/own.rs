//! A file that declares an experiment with a network of its own.

use anyhow::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::runner::{Runner, lab_command};
use crate::experiment::definition::{Experiment, Options, Takes};
use crate::experiment::goals::{self, Goal};
use crate::results::record::Record;
use crate::results::report::{Against, Paper, Words};

/// The code of such an experiment.
pub type OwnRunner = Runner<fn(&Options, &mut Record) -> Result<()>>;

/// `P` is what only its code understands.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Own<P> {
    /// One line, for `vsnoop-lab list`.
    pub about: String,
    pub title: String,
    /// What the tables and plots show.
    pub what_to_see: String,
    pub method: String,
    pub takes: Takes,
    pub paper: Option<Paper>,
    /// Bounds of figures.
    #[serde(default)]
    pub goals: Vec<Goal>,
    pub plan: P,
}

impl<P: DeserializeOwned + 'static> Own<P> {
    /// Of the text of a file; tests read each of them.
    pub fn read(text: &str) -> Self {
        toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn experiment(&'static self, runner: &'static OwnRunner) -> Experiment {
        let difference = &runner.difference;
        let against = |paper| Against { paper, difference, plot: None };
        let words = Words {
            title: &self.title,
            what_to_see: &self.what_to_see,
            method: &self.method,
            command: lab_command(runner.name),
            tables: runner.tables,
            figures: runner.figures,
            goals: goals::judge(&self.goals).or(runner.goals),
            papers: self.paper.iter().map(against).collect::<Vec<_>>().leak(),
            plots: runner.plots,
        };
        let (name, about, takes, run) = (runner.name, &*self.about, self.takes, runner.run);
        Experiment { name, about, words, takes, run }
    }
}
