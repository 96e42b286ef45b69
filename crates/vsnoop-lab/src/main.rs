//! `vsnoop-lab`: runs experiments on real VMs and reports on them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use vsnoop_lab::experiment::{ALL, Experiment, Options};
use vsnoop_lab::results::table::{self, Style};
use vsnoop_lab::results::{Results, report};
use vsnoop_lab::{interrupt, workspace};

/// Experiments on real VMs, with and without vsnoop.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Shows the experiments.
    List,
    /// Runs experiments; results go to results/NAME.
    Run {
        #[arg(required = true)]
        names: Vec<String>,
        /// Few repetitions, only to see that everything works.
        #[arg(long)]
        quick: bool,
        /// Another directory for the results; only with a single experiment.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Only this configuration (may be repeated).
        #[arg(long = "configuration", value_name = "NAME")]
        configurations: Vec<String>,
        /// Only transfers of this size.
        #[arg(long = "size", value_name = "BYTES")]
        size_bytes: Option<u64>,
        /// Pairs of transfers of each size, instead of the experiment's own number.
        #[arg(long)]
        pairs: Option<usize>,
    },
    /// Makes report.md and the plots again from results.json.
    Report { dir: PathBuf },
}

fn main() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = act(Arguments::parse().action);
    if let Err(error) = result {
        if interrupt::interrupted() {
            std::process::exit(interrupt::EXIT_STATUS);
        }
        eprintln!("vsnoop-lab: {error:#}");
        std::process::exit(1);
    }
}

fn act(action: Action) -> Result<()> {
    match action {
        Action::List => {
            for experiment in &ALL {
                println!("{:10} {}", experiment.name, experiment.about);
            }
            Ok(())
        }
        Action::Run { names, quick, out, configurations, size_bytes, pairs } => {
            anyhow::ensure!(out.is_none() || names.len() == 1, "--out takes a single experiment");
            // All names first: a typing error must not cost the minutes of the runs before it.
            let experiments =
                names.iter().map(|name| Experiment::find(name)).collect::<Result<Vec<_>>>()?;
            interrupt::install()?;
            let options = Options { quick, configurations, size_bytes, pairs };
            for experiment in experiments {
                let dir = match &out {
                    Some(dir) => dir.clone(),
                    None => workspace::root()?.join("results").join(experiment.name),
                };
                let results = experiment
                    .run(&options, &dir)
                    .with_context(|| format!("experiment {}", experiment.name))?;
                println!("{}", table::render(&results, Style::Terminal));
                println!("written: {}", dir.display());
            }
            Ok(())
        }
        Action::Report { dir } => {
            let results = Results::read(&dir)?;
            let experiment = Experiment::find(&results.experiment)?;
            report::write(&results, &experiment.words, &dir)?;
            println!("{}", table::render(&results, Style::Terminal));
            Ok(())
        }
    }
}
