//! The experiments, each a value of [`Experiment`].

mod compare;
mod demo;
pub mod environment;
mod hold;
pub mod incast;
mod lab;
pub mod link;
mod paper_window;
mod progress;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::results::report::Words;
use crate::results::{CUT_SHORT, PathLink, Results};

/// How to run an experiment. What is empty is as the experiment itself has it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Fewer repetitions: to see that everything works.
    pub quick: bool,
    /// Only these configurations.
    pub configurations: Vec<String>,
    /// Only transfers of these sizes.
    pub sizes_bytes: Vec<u64>,
    /// Rounds of each size.
    pub rounds: Option<usize>,
    /// Machines that share the core.
    pub vms: Vec<usize>,
    /// Of each machine, 0.0 to 1.0.
    pub loads: Vec<f64>,
    pub path_rtts_ms: Vec<f64>,
    pub path_loss_percent: Option<f64>,
    /// Of a path that has a rate.
    pub path_link: Option<PathLink>,
    /// Of `incast` only.
    pub incast: incast::Selection,
}

/// An experiment by name.
pub struct Experiment {
    pub name: &'static str,
    pub about: &'static str,
    pub words: Words,
    run: fn(&Options) -> Result<Results>,
}

pub static ALL: [Experiment; 7] = [
    demo::EXPERIMENT,
    hold::EXPERIMENT,
    incast::EXPERIMENT,
    link::LAN,
    link::WAN,
    link::COMPRESS,
    paper_window::EXPERIMENT,
];

impl Experiment {
    pub fn find(name: &str) -> Result<&'static Self> {
        ALL.iter().find(|experiment| experiment.name == name).with_context(|| {
            let names: Vec<_> = ALL.iter().map(|experiment| experiment.name).collect();
            format!("there is no experiment {name:?}; there are: {}", names.join(", "))
        })
    }

    /// Runs it and writes the files of its results to `out`, or beside it if the run was cut short
    /// and `out` has the results of a whole one. The second value is where they are.
    pub fn run(&self, options: &Options, out: &Path) -> Result<(Results, PathBuf)> {
        ensure!(
            self.name == incast::EXPERIMENT.name || options.incast == incast::Selection::default(),
            "--part, --senders, --rate, --buffer, --mark, --congestion-control, --rto-min and --opener \
             are options of the experiment {} only",
            incast::EXPERIMENT.name
        );
        let results = (self.run)(options)?;
        let is_whole = |results: &Results| !results.environment.contains_key(CUT_SHORT);
        let keeps = !is_whole(&results) && Results::read(out).is_ok_and(|there| is_whole(&there));
        let dir = if keeps { out.with_extension("cut-short") } else { out.to_owned() };
        results.write(&dir)?;
        crate::results::report::write(&results, &self.words, &dir)?;
        Ok((results, dir))
    }
}

/// Those of `all` that were asked for; all if none was.
fn chosen(all: &[&'static str], asked: &[String]) -> Result<Vec<&'static str>> {
    if let Some(unknown) = asked.iter().find(|name| !all.contains(&name.as_str())) {
        bail!("there is no configuration {unknown:?}; there are: {}", all.join(", "));
    }
    let wanted = |name: &&str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    Ok(all.iter().copied().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_chosen_by_name_and_unknown_ones_are_refused() {
        let chosen = |asked: &[&str]| {
            let asked: Vec<_> = asked.iter().map(|name| name.to_string()).collect();
            chosen(&["off", "vsnoop"], &asked)
        };
        assert_eq!(chosen(&[]).unwrap(), ["off", "vsnoop"]);
        assert_eq!(chosen(&["vsnoop"]).unwrap(), ["vsnoop"]);
        let error = chosen(&["vsnoop", "strict"]).unwrap_err().to_string();
        assert!(error.contains("\"strict\"") && error.contains("off, vsnoop"), "{error}");
    }
}
