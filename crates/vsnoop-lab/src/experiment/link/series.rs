//! A running experiment with links: its rig, its turns, and its results.

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

    /// Measures in rounds, where each turn is one measurement of the carrier that `task` names.
    pub fn take_turns<'t, T: Copy>(
        &mut self,
        progress: &mut Progress,
        turns: &[(T, usize)],
        task: impl Fn(T) -> (&'static str, Task<'t>),
    ) -> Result<()> {
        rig::take_turns(turns, |turn| {
            let (name, task) = task(turn);
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

/// The progress of all turns together.
pub fn progress_of<T>(turns: &[&[(T, usize)]]) -> Progress {
    let rounds = turns.iter().flat_map(|turns| turns.iter()).map(|(_, rounds)| rounds);
    Progress::new(rounds.sum())
}

/// The rounds of one configuration: `usual`, unless the options say otherwise.
pub fn rounds(options: &Options, usual: usize) -> usize {
    options.rounds.unwrap_or(if options.quick { 1 } else { usual })
}
