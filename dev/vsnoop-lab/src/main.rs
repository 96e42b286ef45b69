//! `vsnoop-lab`: runs experiments on real VMs and reports on them.

mod all;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use vsnoop_lab::experiment::{self, Experiment, Options};
use vsnoop_lab::results::table::Style;
use vsnoop_lab::{page, report};
use vsnoop_testbed::{guest, interrupt, vm, workspace};

/// Experiments on real VMs, with and without vsnoop.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Shows the experiments, and how many minutes each takes.
    List,
    /// Runs experiments; results go to results/NAME. An interrupted run is gone on with.
    Run(Box<Run>),
    /// Makes one page of results, report.html, after their report.md and plots.
    Report {
        /// Directories of results; all in results/, unless some are named.
        dirs: Vec<PathBuf>,
        /// Another file for the page than results/report.html.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Put the results into this document, such as docs/evaluation.md, as well.
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
    },
    /// Downloads the guests' kernels and makes their image, so that tests need no network.
    Prepare,
    /// Serves transfers, as the guests do, until it is killed.
    #[command(name = vsnoop_lab::peers::server::COMMAND, hide = true)]
    Serve,
}

#[derive(Args)]
struct Run {
    /// Names of experiments, as `list` prints them, or `all`.
    #[arg(required = true)]
    names: Vec<String>,
    /// Another directory for the results; only with a single experiment.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Another directory than results/ for the directories of all experiments.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

fn main() {
    // RUST_LOG shows more than warnings.
    let level = std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(tracing::Level::WARN);
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    let result = act(Arguments::parse().action);
    if let Err(error) = result {
        eprintln!("vsnoop-lab: {error:#}");
        let status = if interrupt::interrupted() { interrupt::EXIT_STATUS } else { 1 };
        std::process::exit(status);
    }
}

fn act(action: Action) -> Result<()> {
    match action {
        Action::List => {
            println!("{:14} full  quick  shows", "experiment");
            let (mut full, mut quick) = (0, 0);
            for Experiment { name, about, takes, .. } in experiment::all() {
                println!("{name:14} {:4}  {:5}  {about}", takes.full_min, takes.quick_min);
                (full, quick) = (full + takes.full_min, quick + takes.quick_min);
            }
            println!("{:14} {full:4}  {quick:5}  all of these, in minutes", "all");
            Ok(())
        }
        Action::Prepare => {
            vm::require_qemu()?;
            guest::prepare_for_tests()
        }
        Action::Serve => vsnoop_lab::peers::server::serve(),
        Action::Run(run) => run_experiments(*run),
        Action::Report { dirs, out, markdown } => {
            let all = workspace::root()?.join("results");
            let dirs = if dirs.is_empty() { page::directories(&all)? } else { dirs };
            let file = out.unwrap_or_else(|| all.join("report.html"));
            page::write(&dirs, &file, markdown.as_deref())?;
            for file in std::iter::once(&file).chain(&markdown) {
                println!("written: {}", file.display());
            }
            Ok(())
        }
    }
}

fn run_experiments(run: Run) -> Result<()> {
    let everything = run.names == ["all"];
    anyhow::ensure!(
        run.out.is_none() || (run.names.len() == 1 && !everything),
        "--out takes a single experiment"
    );
    // All names first: a typing error must not cost the minutes of the runs before it.
    let experiments = match everything {
        true => experiment::all().iter().collect(),
        false => run.names.iter().map(|name| Experiment::find(name)).collect::<Result<Vec<_>>>()?,
    };
    interrupt::install()?;
    let dir = match run.dir {
        Some(dir) => dir,
        None => workspace::root()?.join("results"),
    };
    let options = run.options;
    if everything {
        return all::run(&experiments, &options, &dir, one);
    }
    for experiment in experiments {
        let out = run.out.clone().unwrap_or_else(|| dir.join(&experiment.name));
        one(experiment, &options, &out)?;
    }
    Ok(())
}

/// Runs an experiment and shows its tables.
fn one(experiment: &'static Experiment, options: &Options, out: &Path) -> Result<()> {
    let (results, dir) =
        experiment.run(options, out).with_context(|| format!("experiment {}", experiment.name))?;
    println!("{}", experiment.report.tables(&results, Style::Terminal));
    if let Some(partial) = report::partial(&results) {
        println!("{partial}");
    }
    println!("written: {}", dir.display());
    if let Some(error) = report::cut_short(&results) {
        anyhow::bail!(
            "experiment {} was cut short: {error}; the same command goes on from there",
            experiment.name
        );
    }
    Ok(())
}
