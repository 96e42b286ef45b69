//! The experiments, declared in files (experiments/*.toml, [`declared`]), and the runners that
//! measure them.

mod configuration;
pub mod cpus;
pub mod declared;
pub mod environment;
pub mod incast;
mod lab;
pub mod link;
mod migrate;
mod mpi;
mod nginx;
pub mod options;
mod path_check;
mod ping;
mod profile;
mod progress;
mod rounds;
#[cfg(test)]
mod segments;
mod services;
mod spent;
mod systems;
mod transfers;
mod ways;
mod web;

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde_json::json;
use vsnoop_testbed::workspace;

use crate::results::record::Record;
use crate::results::{CUT_SHORT, Results};

pub use declared::{Experiment, all};
use declared::{Runner, Task};
pub use options::Options;

/// The runners by the names that experiments/*.toml have.
static RUNNERS: &[Runner] = &[
    Runner { name: "incast", run: incast::run },
    Runner { name: "link", run: link::run },
    Runner { name: "migrate", run: migrate::run },
    Runner { name: "mpi", run: mpi::run },
    Runner { name: "nginx", run: nginx::run },
    Runner { name: "ping", run: ping::run },
    Runner { name: "profile", run: profile::run },
    Runner { name: "services", run: services::run },
    Runner { name: "transfers", run: transfers::run },
    Runner { name: "web", run: web::run },
];

impl Experiment {
    fn find_runner(&self) -> Result<&'static Runner> {
        let runner = RUNNERS.iter().find(|runner| runner.name == self.runner);
        runner.with_context(|| format!("there is no runner {}", self.runner))
    }

    /// Runs it and writes the files of its results to `out`, or beside it if the run was cut short
    /// and `out` has the results of a whole one. The second value is where they are. An interrupted
    /// run is gone on with.
    pub fn run(&'static self, options: &Options, out: &Path) -> Result<(Results, PathBuf)> {
        self.run_by(self.find_runner()?.run, options, out)
    }

    fn run_by(
        &'static self,
        run: fn(Task) -> Result<()>,
        options: &Options,
        out: &Path,
    ) -> Result<(Results, PathBuf)> {
        self.check(options)?;
        let begun = Results::begin(&self.name, environment::describe());
        let mut record = Record::open(out, begun, &same(options))?;
        let ended = run(Task { experiment: self, options, record: &mut record });
        if ended.is_err()
            && let Err(error) = record.note_environment()
        {
            tracing::warn!("a run that goes on will lack some of the environment: {error:#}");
        }
        let results = &mut record.results;
        if let Err(error) = ended {
            if results.samples.is_empty() {
                record.close();
                // It is empty, unless it has earlier results.
                let _ = fs::remove_dir(out);
                return Err(error.context("nothing was measured"));
            }
            // The results keep the samples from before the error, and are marked as incomplete.
            results.environment.insert(CUT_SHORT.into(), json!(format!("{error:#}")));
        }
        let figures = self.report.figures(results)?;
        results.figures.extend(figures);
        let is_whole = |results: &Results| !results.environment.contains_key(CUT_SHORT);
        let whole = is_whole(results);
        let keeps = !whole && Results::read(out).is_ok_and(|there| is_whole(&there));
        let cut_short = beside(out);
        let dir = if keeps { &cut_short } else { out };
        let written =
            results.write(dir).and_then(|()| self.report.write(results, &self.command(), dir));
        // The journal has them.
        written.with_context(|| {
            format!("{} measurements are kept; the same command goes on", results.samples.len())
        })?;
        if !whole {
            return Ok((record.results, dir.to_owned()));
        }
        match fs::remove_dir_all(&cut_short) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!("{} stays: {error}", cut_short.display());
            }
            _ => (),
        }
        Ok((record.close(), dir.to_owned()))
    }
}

/// Where results of a run that was cut short are, if those of a whole one are in `out`.
fn beside(out: &Path) -> PathBuf {
    let name = out.file_name().map_or_else(Default::default, OsString::from);
    out.with_file_name([name, ".cut-short".into()].into_iter().collect::<OsString>())
}

/// A text that must be the same when a run is gone on with: options, the `vsnoop` under test, and
/// the lab itself, which has the declarations in it.
pub fn same(options: &Options) -> String {
    let built = |program: Option<PathBuf>| {
        let at = fs::metadata(program?).and_then(|file| file.modified()).ok()?;
        at.duration_since(SystemTime::UNIX_EPOCH).ok()
    };
    let vsnoop = built(workspace::vsnoop_command().ok());
    let lab = built(std::env::current_exe().ok());
    format!("{options:?}, vsnoop of {vsnoop:?}, lab of {lab:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::sample;

    #[test]
    fn every_experiment_has_a_runner_a_plan_a_name_of_its_own_and_a_report_that_can_be_made() {
        for (number, experiment) in all().iter().enumerate() {
            let name = &experiment.name;
            assert_eq!(all().iter().position(|one| one.name == *name), Some(number));
            assert!(experiment.find_runner().is_ok(), "{name}");
            let results = Results::begin(name, Default::default());
            experiment.report.check(&results).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }

    #[test]
    fn a_run_of_all_takes_eight_hours_and_a_quick_one_an_hour_at_most_by_the_estimates() {
        let full: u64 = all().iter().map(|one| one.takes.full_min).sum();
        let quick: u64 = all().iter().map(|one| one.takes.quick_min).sum();
        assert!(full <= 480 && quick < 60, "{full}, {quick}");
    }

    #[test]
    fn results_that_were_cut_short_stand_beside_whole_ones_until_a_run_is_whole() {
        let root = std::env::temp_dir().join(format!("runs-{}", std::process::id()));
        let out = root.join("ping");
        let run = |measure: fn(Task) -> Result<()>| {
            let ping = Experiment::find("ping").unwrap();
            ping.run_by(measure, &Options::default(), &out).unwrap().1
        };
        let whole = |task: Task| task.record.push(sample("off", 1.0));
        let cut_short = |task: Task| {
            task.record.push(sample("off", 1.0))?;
            anyhow::bail!("interrupted")
        };
        let beside = root.join("ping.cut-short");
        assert_eq!((run(whole), run(cut_short)), (out.clone(), beside.clone()));
        assert!(beside.join("results.json").exists());
        assert_eq!(run(whole), out);
        let left = beside.exists();
        fs::remove_dir_all(&root).unwrap();
        assert!(!left);
    }
}
