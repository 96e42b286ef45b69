//! A running experiment with links: its rig, its measurements, and its results.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::json;
use vsnoop_testbed::relay::Faults;
use vsnoop_testbed::workspace;

use super::rig::{self, Rig, Task};
use super::stream::Until;
use crate::experiment::definition::Options;
use crate::experiment::progress::Progress;
use crate::results::record::Record;
use crate::results::{Results, Sample};

/// A running experiment with its results so far.
pub struct Series<'r> {
    pub rig: Rig,
    pub record: &'r mut Record,
}

impl<'r> Series<'r> {
    /// Begins it, and starts the carriers.
    pub fn begin(
        record: &'r mut Record,
        options: &Options,
        path: Option<&Faults>,
        carriers: &[&'static str],
    ) -> Result<Self> {
        prepare(&mut record.results, options)?;
        let rig = Rig::build(path, carriers)?;
        rig.describe(&mut record.results);
        Ok(Self { rig, record })
    }

    /// Measures in interleaved rounds; `task` says which carrier and what.
    pub fn interleave<'t, T: Copy>(
        &mut self,
        progress: &mut Progress,
        measurements: &[(T, usize)],
        task: impl Fn(T) -> (&'static str, Task<'t>),
    ) -> Result<()> {
        rig::interleave(measurements, |measurement, round| {
            let (name, task) = task(measurement);
            let Some(link) = self.rig.link(name) else { return Ok(()) };
            if self.record.has(name, task.load.bytes(), &task.cell, round) {
                progress.skip(1);
                return Ok(());
            }
            let at_ms = self.record.elapsed_ms();
            let sample = self.rig.measure(link, task)?;
            self.record.push(Sample { turn: Some(round), at_ms, ..sample })?;
            progress.step(format!("{name}, {}", task.cell));
            Ok(())
        })
    }
}

/// Refuses options that these experiments do not support; describes `vsnoop`.
pub fn prepare(results: &mut Results, options: &Options) -> Result<()> {
    ensure!(
        options.sizes_bytes.is_empty()
            && options.vms.is_empty()
            && options.loads.is_empty()
            && options.path_rtts_ms.is_empty()
            && options.path_loss_percent.is_none()
            && options.path_link.is_none(),
        "{} takes --quick, --configuration, --rounds, --dir and --out only",
        results.experiment
    );
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and starts tunnels: run it as root"
    );
    if let Ok(program) = workspace::vsnoop_command() {
        let version = vsnoop_testbed::net::checked(program, ["--version"]);
        results.environment.insert("vsnoop".into(), json!(version?.trim()));
    }
    Ok(())
}

/// The progress of all measurements together.
pub fn progress_of<T>(measurements: &[&[(T, usize)]]) -> Progress {
    let rounds =
        measurements.iter().flat_map(|measurements| measurements.iter()).map(|(_, rounds)| rounds);
    Progress::new(rounds.sum())
}

/// The rounds of one configuration: `usual`, or `quick` ones, unless the options say otherwise.
pub fn rounds(options: &Options, usual: usize, quick: usize) -> usize {
    options.rounds.unwrap_or(if options.quick { quick } else { usual })
}

/// Of a quick run with streams that take a time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuickStreams {
    pub rounds: usize,
    stream_ms: u64,
}

impl QuickStreams {
    /// The end of a stream, which takes `usual_ms` unless the run is a quick one.
    pub fn until(&self, options: &Options, usual_ms: u64) -> Until<'static> {
        Until::Time(Duration::from_millis(if options.quick { self.stream_ms } else { usual_ms }))
    }
}

/// Of carriers that a file declares.
pub fn names(carriers: &'static [String]) -> Vec<&'static str> {
    carriers.iter().map(String::as_str).collect()
}
