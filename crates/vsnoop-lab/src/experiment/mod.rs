//! The experiments, each a value of [`Experiment`].

mod compare;
mod definition;
mod demo;
pub mod environment;
mod hold;
pub mod incast;
mod lab;
pub mod link;
mod path_check;
mod progress;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::results::{CUT_SHORT, Results};

pub use definition::{Experiment, Options};

pub static ALL: [Experiment; 7] = [
    demo::EXPERIMENT,
    hold::EXPERIMENT,
    incast::EXPERIMENT,
    link::LAN,
    link::WAN,
    link::COMPRESS,
    link::SCALE,
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
            "--part, --senders, --rate, --buffer, --mark, --rto-min and --opener are options of the \
             experiment {} only",
            incast::EXPERIMENT.name
        );
        let choose_congestion_control = [hold::EXPERIMENT.name, incast::EXPERIMENT.name];
        ensure!(
            choose_congestion_control.contains(&self.name)
                || options.congestion_controls.is_empty(),
            "--congestion-control is an option of the experiments {} only",
            choose_congestion_control.join(" and ")
        );
        ensure!(
            self.name == link::SCALE.name || options.peers.is_none(),
            "--peers is an option of the experiment {} only",
            link::SCALE.name
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
