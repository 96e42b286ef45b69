//! The results of an experiment, with its report.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::experiment::Experiment;
use crate::results::Results;

/// The results of one experiment.
pub struct Part {
    pub experiment: &'static Experiment,
    pub results: Results,
    /// report.md.
    pub report: String,
    /// Where its plots are.
    pub dir: PathBuf,
}

impl Part {
    pub fn read(dir: &Path) -> Result<Self> {
        let mut results = Results::read(dir)?;
        let experiment = Experiment::find(&results.experiment)?;
        results.figures = experiment.report.figures(&results)?;
        let report = experiment.report.write(&results, &experiment.command(), dir)?;
        Ok(Self { experiment, results, report, dir: dir.to_owned() })
    }
}

/// A report within a document, which has a title of its own.
pub fn lowered(report: &str) -> String {
    let lower = |line: &str| if line.starts_with('#') { format!("#{line}") } else { line.into() };
    report.lines().map(lower).collect::<Vec<_>>().join("\n")
}
