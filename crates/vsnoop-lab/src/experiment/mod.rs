//! The experiments, each a value of [`Experiment`] and declared in a file (experiments/*.toml,
//! [`declared`]).

mod configuration;
pub mod cpus;
pub mod declared;
mod definition;
mod delays;
mod demo;
mod downloads;
pub mod environment;
mod goals;
mod hold;
pub mod incast;
mod lab;
pub mod link;
mod migrate;
mod mpi;
mod nginx;
mod path_check;
mod ping;
mod profile;
mod progress;
mod rounds;
mod sequence;
mod service;
mod services;
mod spent;
mod systems;
mod transfers;
mod uploads;
mod ways;
mod web;

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vsnoop_testbed::workspace;

use crate::results::record::Record;
use crate::results::{CUT_SHORT, ROUNDS_PLANNED, Results, report, statistics};

use declared::{Declaration, Runner};
pub use definition::{Experiment, Options, Takes};

/// What experiments/*.toml name as `runner`.
static RUNNERS: &[&Runner] = &[
    &demo::RUNNER,
    &hold::RUNNER,
    &migrate::RUNNER,
    &ping::RUNNER,
    &delays::RUNNER,
    &sequence::RUNNER,
    &profile::RUNNER,
    &transfers::RUNNER,
    &uploads::RUNNER,
    &downloads::RUNNER,
    &services::RUNNER,
    &web::RUNNER,
    &mpi::RUNNER,
];

static ALL: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
    let of = |declaration: &'static Declaration| {
        let runner = RUNNERS.iter().find(|runner| runner.name == declaration.runner);
        // A test makes each of them.
        let runner = runner.unwrap_or_else(|| panic!("no runner {}", declaration.runner));
        declaration.experiment(runner, run_declared)
    };
    let mut all: Vec<_> = declared::all().iter().map(of).collect();
    // In the order of lists.
    let links = link::experiments().into_iter();
    insert_after(hold::RUNNER.name, &mut all, [incast::experiment()].into_iter().chain(links));
    insert_after(migrate::RUNNER.name, &mut all, [service::experiment()]);
    all
});

fn insert_after(name: &str, all: &mut Vec<Experiment>, more: impl IntoIterator<Item = Experiment>) {
    let before = all.iter().position(|experiment| experiment.name == name);
    let at = before.expect("the file of this experiment is listed") + 1;
    all.splice(at..at, more);
}

fn run_declared(options: &Options, record: &mut Record) -> Result<()> {
    let name = &record.results.experiment;
    let declaration = Declaration::find(name).with_context(|| format!("{name} is no file"))?;
    let runner = RUNNERS.iter().find(|runner| runner.name == declaration.runner);
    let runner = runner.with_context(|| format!("there is no runner {}", declaration.runner))?;
    let plan = declaration.plan(options)?;
    record.results.environment.insert(ROUNDS_PLANNED.into(), json!(plan.round_count()));
    (runner.run)(declared::Task { plan, record })
}

/// All experiments, in the order of lists.
pub fn all() -> &'static [Experiment] {
    &ALL
}

impl Experiment {
    pub fn find(name: &str) -> Result<&'static Self> {
        all().iter().find(|experiment| experiment.name == name).with_context(|| {
            let names: Vec<_> = all().iter().map(|experiment| experiment.name).collect();
            format!("there is no experiment {name:?}; there are: {}", names.join(", "))
        })
    }

    /// Runs it and writes the files of its results to `out`, or beside it if the run was cut short
    /// and `out` has the results of a whole one. The second value is where they are. An interrupted
    /// run is gone on with.
    pub fn run(&self, options: &Options, out: &Path) -> Result<(Results, PathBuf)> {
        self.refuse_foreign(options)?;
        let begun = Results::begin(self.name, environment::describe());
        let mut record = Record::open(out, begun, &same(options))?;
        let ended = (self.run)(options, &mut record);
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
        statistics::summarise(results);
        let figures = (self.words.figures)(results);
        results.figures.extend(figures);
        let is_whole = |results: &Results| !results.environment.contains_key(CUT_SHORT);
        let whole = is_whole(results);
        let keeps = !whole && Results::read(out).is_ok_and(|there| is_whole(&there));
        let cut_short = beside(out);
        let dir = if keeps { &cut_short } else { out };
        let written = results.write(dir).and_then(|()| report::write(results, &self.words, dir));
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

    fn refuse_foreign(&self, options: &Options) -> Result<()> {
        let declared = Declaration::find(self.name).is_some();
        ensure!(
            self.name == incast::NAME || options.incast == incast::Selection::default(),
            "--senders, --rate, --buffer, --mark, --rto-min and --opener are options of the \
             experiment {} only",
            incast::NAME
        );
        ensure!(
            options.parts.is_empty() || [incast::NAME, service::NAME].contains(&self.name),
            "{} has no parts for --part",
            self.name
        );
        ensure!(
            options.connections.is_none() || self.name == service::NAME,
            "--connections is an option of the experiment {} only",
            service::NAME
        );
        ensure!(
            declared || self.name == incast::NAME || options.congestion_controls.is_empty(),
            "{} takes no --congestion-control",
            self.name
        );
        ensure!(declared || options.shares.is_empty(), "{} takes no --share", self.name);
        ensure!(
            self.name == link::SCALE || options.peers.is_none(),
            "--peers is an option of the experiment {} only",
            link::SCALE
        );
        Ok(())
    }
}

/// Where results of a run that was cut short are, if those of a whole one are in `out`.
fn beside(out: &Path) -> PathBuf {
    let name = out.file_name().map_or_else(Default::default, OsString::from);
    out.with_file_name([name, ".cut-short".into()].into_iter().collect::<OsString>())
}

/// What must be the same when a run is gone on with: the options, the `vsnoop` under test, and the
/// lab itself, which has the declarations in it.
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
    use crate::results::report::Words;
    use crate::results::testing::sample;

    #[test]
    fn every_declared_experiment_has_a_runner_and_a_name_of_its_own() {
        for (number, experiment) in all().iter().enumerate() {
            assert_eq!(all().iter().position(|one| one.name == experiment.name), Some(number));
        }
        assert!(Experiment::find("ping").is_ok());
    }

    #[test]
    fn a_run_of_all_takes_eight_hours_and_a_quick_one_an_hour_at_most_by_the_estimates() {
        let sum = |minutes: fn(&Takes) -> u64| all().iter().map(|one| minutes(&one.takes)).sum();
        let (full, quick): (u64, u64) = (sum(|takes| takes.full_min), sum(|takes| takes.quick_min));
        assert!(full <= 480 && quick < 60, "{full}, {quick}");
    }

    #[test]
    fn what_repeats_a_figure_names_it_and_without_samples_there_is_no_difference() {
        // No paper has these.
        let own = ["downloads", "link-scale", "migrate", "service", "services", "uploads"];
        for experiment in all() {
            let (name, papers) = (experiment.name, experiment.words.papers);
            assert_eq!(papers.is_empty(), own.contains(&name), "{name}");
            for against in papers {
                let paper = against.paper;
                assert!(!paper.figure.is_empty() && !paper.shape.is_empty(), "{name}");
                let difference = (against.difference)(&Results::begin(name, Default::default()));
                assert_eq!(difference, None, "{name}");
            }
        }
    }

    #[test]
    fn results_that_were_cut_short_stand_beside_whole_ones_until_a_run_is_whole() {
        let root = std::env::temp_dir().join(format!("runs-{}", std::process::id()));
        let out = root.join("ping");
        let run = |measures: fn(&Options, &mut Record) -> Result<()>| {
            let ping = Experiment::find("ping").unwrap();
            let words = Words { plots: |_, _| Ok(Vec::new()), ..ping.words };
            let Experiment { name, about, takes, .. } = *ping;
            let test = Experiment { name, about, words, takes, run: measures };
            test.run(&Options::default(), &out).unwrap().1
        };
        let whole = |_: &Options, record: &mut Record| record.push(sample("off", 1.0));
        let cut_short = |_: &Options, record: &mut Record| {
            record.push(sample("off", 1.0))?;
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
