//! A running experiment with links: its rig, its measurements, and its results.

use anyhow::{Result, ensure};
use serde_json::json;
use vsnoop_testbed::relay::Faults;
use vsnoop_testbed::workspace;

use super::rig::{self, Rig, Task};
use crate::experiment::definition::Options;
use crate::experiment::environment;
use crate::experiment::progress::Progress;
use crate::results::statistics::summarise;
use crate::results::{Figure, Results};

/// A running experiment with its results so far.
pub struct Series {
    pub rig: Rig,
    pub results: Results,
}

impl Series {
    /// Begins it, and starts the carriers.
    pub fn begin(
        name: &str,
        options: &Options,
        path: Option<&Faults>,
        carriers: &[&'static str],
    ) -> Result<Self> {
        let mut results = prepare(name, options)?;
        let rig = Rig::build(path, carriers)?;
        rig.describe(&mut results);
        Ok(Self { rig, results })
    }

    /// Measures in interleaved rounds; `task` says which carrier and what.
    pub fn interleave<'t, T: Copy>(
        &mut self,
        progress: &mut Progress,
        measurements: &[(T, usize)],
        task: impl Fn(T) -> (&'static str, Task<'t>),
    ) -> Result<()> {
        rig::interleave(measurements, |measurement| {
            let (name, task) = task(measurement);
            let Some(link) = self.rig.link(name) else { return Ok(()) };
            let sample = self.rig.measure(link, task)?;
            progress.step(format!("{name}, {}", task.cell));
            self.results.samples.push(sample);
            Ok(())
        })
    }

    pub fn end(mut self, figures: fn(&Results) -> Vec<Figure>) -> Results {
        summarise(&mut self.results);
        self.results.figures = figures(&self.results);
        self.results
    }
}

/// Refuses options that these experiments do not support; results without samples.
pub fn prepare(name: &str, options: &Options) -> Result<Results> {
    ensure!(
        options.sizes_bytes.is_empty()
            && options.vms.is_empty()
            && options.loads.is_empty()
            && options.path_rtts_ms.is_empty()
            && options.path_loss_percent.is_none()
            && options.path_link.is_none(),
        "{name} takes --quick, --configuration, --rounds and --out only"
    );
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and starts tunnels: run it as root"
    );
    let mut results = Results::begin(name, environment::describe());
    if let Ok(program) = workspace::vsnoop_command() {
        let version = vsnoop_testbed::net::checked(program, ["--version"]);
        results.environment.insert("vsnoop".into(), json!(version?.trim()));
    }
    Ok(results)
}

/// The progress of all measurements together.
pub fn progress_of<T>(measurements: &[&[(T, usize)]]) -> Progress {
    let rounds =
        measurements.iter().flat_map(|measurements| measurements.iter()).map(|(_, rounds)| rounds);
    Progress::new(rounds.sum())
}

/// The rounds of one configuration: `usual`, unless the options say otherwise.
pub fn rounds(options: &Options, usual: usize) -> usize {
    options.rounds.unwrap_or(if options.quick { 1 } else { usual })
}
