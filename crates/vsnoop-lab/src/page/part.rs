//! The results of an experiment, with its report.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::markdown;
use crate::experiment::Experiment;
use crate::results::{Results, report};

/// The results of one experiment.
pub struct Part {
    pub experiment: &'static Experiment,
    pub results: Results,
    /// report.md.
    pub report: String,
    /// The same as HTML.
    pub body: String,
}

impl Part {
    pub fn read(dir: &Path) -> Result<Self> {
        let results = Results::read(dir)?;
        let experiment = Experiment::find(&results.experiment)?;
        let report = report::write(&results, &experiment.words, dir)?;
        let plot = |name: &str| fs::read_to_string(dir.join(name));
        let body = markdown::html(&report, plot)
            .with_context(|| format!("the report of {}", dir.display()))?;
        Ok(Self { experiment, results, report, body })
    }
}

/// Whether results of the experiment are among these.
pub fn measured(parts: &[Part], experiment: &Experiment) -> bool {
    parts.iter().any(|part| part.experiment.name == experiment.name)
}
