//! `vsnoop-sim SCENARIO`: runs the cells of a scenario that are not in its results yet, and reports
//! all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use vsnoop_sim::record::{Done, Record};
use vsnoop_sim::scenario::Scenario;
use vsnoop_sim::{figures, report, waits};

/// Incast control in ns-3: many senders behind the last hop of a host.
#[derive(Parser)]
#[command(name = "vsnoop-sim")]
struct Options {
    /// Scenario, TOML; see docs/simulation.md
    scenario: PathBuf,
    /// Directory of the results
    #[arg(long, default_value = "results/sim")]
    results: PathBuf,
    /// Only this series
    #[arg(long)]
    series: Vec<String>,
    /// Forget the cells that were run before
    #[arg(long)]
    again: bool,
    /// Report what is there, and run nothing
    #[arg(long)]
    report: bool,
    /// Seconds that a cell may take
    #[arg(long, default_value_t = 120)]
    cell_seconds: u64,
    /// Run no cell: keep a CPU busy for this time, and print how long this process ran and waited,
    /// in turn
    #[arg(long, value_name = "SECONDS")]
    record_waits: Option<u64>,
}

fn environment(options: &Options) -> BTreeMap<String, serde_json::Value> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let info = text("/proc/cpuinfo");
    let cpu = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let version = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let version = version.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    BTreeMap::from([
        ("scenario".into(), json!(options.scenario)),
        ("version".into(), json!(version.unwrap_or_default())),
        ("ns-3".into(), json!("3.37, of Debian")),
        ("cpu_model".into(), json!(cpu.map(|(_, model)| model))),
        ("load_average_before".into(), json!(text("/proc/loadavg").split(' ').next())),
    ])
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(seconds) = options.record_waits {
        println!("turns_us = {:?}", waits::record(Duration::from_secs(seconds)));
        return Ok(());
    }
    let scenario = Scenario::load(&options.scenario)?;
    let program = std::env::current_exe()?.with_file_name("vsnoop-sim-cell");
    let mut record = Record::open(&options.results, options.again, environment(&options))?;
    let is_asked = |series: &String| options.series.is_empty() || options.series.contains(series);
    let cells = scenario.cells.iter().filter(|cell| !options.report && is_asked(&cell.series));
    let cells: Vec<_> = cells.filter(|cell| !record.has(cell)).collect();
    for (number, cell) in cells.iter().enumerate() {
        let start = Instant::now();
        let outcome =
            cell.run(&program, scenario.turns_us(cell), Duration::from_secs(options.cell_seconds))?;
        let goodput = outcome.as_ref().map_or("too long".into(), |outcome| {
            format!("{:.0} Mb/s, {} late", outcome.goodput_mbps, outcome.late_rounds)
        });
        eprintln!(
            "{}/{}  {} {} Gb/s {} senders {}: {goodput}",
            number + 1,
            cells.len(),
            cell.series,
            cell.gbps,
            cell.senders,
            cell.configuration.name()
        );
        let wall_s = start.elapsed().as_secs_f64();
        record.push(Done { cell: (*cell).clone(), outcome, wall_s })?;
    }
    record.results.cells.retain(|done| scenario.cells.contains(&done.cell));
    record.results.figures = figures::all(&record.results.cells, &scenario.lab);
    record.write()?;
    let text = report::write(&scenario, &record.results, &options.results)
        .context("the report cannot be made")?;
    print!("{text}");
    Ok(())
}
