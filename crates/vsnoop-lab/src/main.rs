//! `vsnoop-lab`: runs experiments on real VMs and reports on them.

mod all;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use vsnoop_lab::experiment::incast::Selection;
use vsnoop_lab::experiment::{self, Experiment, Options, Takes};
use vsnoop_lab::page;
use vsnoop_lab::results::incast::CongestionControl;
use vsnoop_lab::results::table::Style;
use vsnoop_lab::results::{Results, report};
use vsnoop_testbed::stage::path::PathLink;
use vsnoop_testbed::vm::Share;
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
    /// Few repetitions, only to see that everything works.
    #[arg(long)]
    quick: bool,
    /// Another directory for the results; only with a single experiment.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Another directory than results/ for the directories of all experiments.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    dir: Option<PathBuf>,
    /// Only this configuration (may be repeated).
    #[arg(long = "configuration", value_name = "NAME")]
    configurations: Vec<String>,
    /// Only transfers of this size (may be repeated).
    #[arg(long = "size", value_name = "BYTES")]
    sizes_bytes: Vec<u64>,
    /// Rounds of each size in each cell, instead of the experiment's own number; a round is one
    /// transfer in each configuration.
    #[arg(long, visible_alias = "pairs", value_name = "N")]
    rounds: Option<usize>,
    /// Machines that share the core (may be repeated).
    #[arg(long, value_name = "N")]
    vms: Vec<usize>,
    /// How machines share the core: `quota:PERCENT`, `fair`, `fair:HOGS` or `slices` (may be
    /// repeated).
    #[arg(long = "share", value_name = "HOW")]
    shares: Vec<Share>,
    /// CPU load of each machine, 0.0 to 1.0 (may be repeated).
    #[arg(long = "load", value_name = "SHARE")]
    loads: Vec<f64>,
    /// Round trip between client and host; 0 is a veth (may be repeated).
    #[arg(long = "path-rtt", value_name = "MS")]
    path_rtts_ms: Vec<f64>,
    /// MTU-sized segments that are lost between client and host, each way, 0 to 5.
    #[arg(long = "path-loss", value_name = "PERCENT")]
    path_loss_percent: Option<f64>,
    /// The path is a link of this rate, each way, with a queue before it.
    #[arg(long = "path-rate", value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..))]
    path_rate_mbit: Option<u64>,
    /// Length of that queue.
    #[arg(
        long = "path-queue",
        value_name = "BYTES",
        default_value_t = 1_000_000,
        requires = "path_rate_mbit"
    )]
    path_queue_bytes: u64,
    /// The senders' congestion control (may be repeated).
    #[arg(long = "congestion-control", value_name = "NAME")]
    congestion_controls: Vec<CongestionControl>,
    /// Peers of the hub of `link-scale`.
    #[arg(long, value_name = "N")]
    peers: Option<u16>,
    /// Only this part of `incast` or `service` (may be repeated).
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<String>,
    /// Short connections of `service`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    connections: Option<u64>,
    #[command(flatten)]
    incast: Selection,
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
            let mut sum = Takes { full_min: 0, quick_min: 0 };
            for Experiment { name, about, takes, .. } in experiment::all() {
                let Takes { full_min, quick_min } = takes;
                println!("{name:14} {full_min:4}  {quick_min:5}  {about}");
                sum.full_min += full_min;
                sum.quick_min += quick_min;
            }
            let Takes { full_min, quick_min } = sum;
            println!("{:14} {full_min:4}  {quick_min:5}  all of these, in minutes", "all");
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
    let path_link = run
        .path_rate_mbit
        .map(|rate_mbit| PathLink { rate_mbit, queue_bytes: run.path_queue_bytes });
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
    let options = Options {
        quick: run.quick,
        configurations: run.configurations,
        sizes_bytes: run.sizes_bytes,
        rounds: run.rounds,
        vms: run.vms,
        shares: run.shares,
        loads: run.loads,
        path_rtts_ms: run.path_rtts_ms,
        path_loss_percent: run.path_loss_percent,
        path_link,
        congestion_controls: run.congestion_controls,
        peers: run.peers,
        parts: run.parts,
        connections: run.connections,
        incast: run.incast,
    };
    if everything {
        return all::run(&experiments, &options, &dir, one);
    }
    for experiment in experiments {
        let out = run.out.clone().unwrap_or_else(|| dir.join(experiment.name));
        one(experiment, &options, &out)?;
    }
    Ok(())
}

/// Runs an experiment and shows its tables.
fn one(experiment: &Experiment, options: &Options, out: &Path) -> Result<()> {
    let (results, dir) =
        experiment.run(options, out).with_context(|| format!("experiment {}", experiment.name))?;
    show(&results, experiment);
    println!("written: {}", dir.display());
    if let Some(error) = report::cut_short(&results) {
        anyhow::bail!(
            "experiment {} was cut short: {error}; the same command goes on from there",
            experiment.name
        );
    }
    Ok(())
}

fn show(results: &Results, experiment: &Experiment) {
    println!("{}", (experiment.words.tables)(results, Style::Terminal));
    if let Some(partial) = report::partial(results) {
        println!("{partial}");
    }
}
