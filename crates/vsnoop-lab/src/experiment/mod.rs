//! The experiments, each a value of [`Experiment`].

mod demo;
pub mod environment;
mod progress;

use std::path::Path;

use anyhow::{Context, Result};

use crate::results::Results;
use crate::results::report::Words;

/// How to run an experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fewer repetitions: to see that everything works.
    pub quick: bool,
    /// Only these configurations; all if empty.
    pub configurations: Vec<String>,
    /// Only transfers of this size, bytes.
    pub size_bytes: Option<u64>,
    /// Pairs of each size instead of the experiment's own number.
    pub pairs: Option<usize>,
}

/// An experiment by name.
pub struct Experiment {
    pub name: &'static str,
    pub about: &'static str,
    pub words: Words,
    run: fn(&Options) -> Result<Results>,
}

pub static ALL: [Experiment; 1] = [demo::EXPERIMENT];

impl Experiment {
    pub fn find(name: &str) -> Result<&'static Self> {
        ALL.iter().find(|experiment| experiment.name == name).with_context(|| {
            let names: Vec<_> = ALL.iter().map(|experiment| experiment.name).collect();
            format!("there is no experiment {name:?}; there are: {}", names.join(", "))
        })
    }

    /// Runs it and writes the files of its results to `out`.
    pub fn run(&self, options: &Options, out: &Path) -> Result<Results> {
        let results = (self.run)(options)?;
        results.write(out)?;
        crate::results::report::write(&results, &self.words, out)?;
        Ok(results)
    }
}
