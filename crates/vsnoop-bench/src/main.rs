//! `make bench`: what vsnoop costs, written to results/bench/results.json.
//!
//! - [`throughput`]: one flow through a namespace behind a tap that is never
//!   descheduled (nothing to gain), attached and detached in turn, as ratios;
//! - [`packet`]: nanoseconds per packet, by the kernel's own accounting of BPF
//!   programs, under real traffic;
//! - [`lookup`]: a passing segment among 1 and among 100,000 flows;
//! - [`compress`]: what compression of a link costs and gains, on one core;
//! - [`fleet`]: how long a new host takes until all others are up with it;
//! - [`slow_peer`]: what a peer behind a slow line costs the others of a link;
//! - [`tiny_segments`]: what a VM that sends super-packets of one-byte segments costs the others;
//! - [`nat_resume`]: how long a transfer takes after a silence that a NAT does not survive;
//! - [`verifier`]: how long attaching takes, and the instructions that the kernel walks before it
//!   accepts a hook.
//! - [`idle`]: memory that an attached idle port takes.

mod compress;
mod conversation;
mod figures;
mod fleet;
mod flows;
mod idle;
mod incast;
mod lookup;
mod memory;
mod nat_resume;
mod packet;
mod slow_peer;
mod stage;
mod throughput;
mod tiny_segments;
mod verifier;

use std::time::SystemTime;

use anyhow::{Context, Result};
use vsnoop_lab::experiment::environment;
use vsnoop_lab::results::{Figure, Results};
use vsnoop_testbed::{interrupt, net, workspace};

use figures::figure;
use stage::PREFIX;

fn main() {
    if let Err(error) = run() {
        if interrupt::interrupted() {
            std::process::exit(interrupt::EXIT_STATUS);
        }
        eprintln!("vsnoop-bench: {error:#}");
        std::process::exit(1);
    }
}

/// The measurements, by the names of their modules; without arguments all of them run.
type Part = (&'static str, fn() -> Result<Vec<Figure>>);
const PARTS: [Part; 11] = [
    ("idle", idle::measure),
    ("lookup", lookup::measure),
    ("incast", incast::measure),
    // The command starts a helper, which clears uplinks away that no port is behind yet.
    ("verifier", verifier::measure),
    ("packet", packet::measure),
    ("compress", compress::measure),
    ("fleet", fleet::measure),
    ("slow_peer", slow_peer::measure),
    ("tiny_segments", tiny_segments::measure),
    ("nat_resume", nat_resume::measure),
    ("throughput", throughput::measure),
];

fn run() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.iter().any(|argument| ["-h", "--help"].contains(&argument.as_str())) {
        println!("{}", usage());
        return Ok(());
    }
    if let Some(unknown) = wanted.iter().find(|name| PARTS.iter().all(|(part, _)| part != name)) {
        let names = PARTS.map(|(part, _)| part).join(", ");
        anyhow::bail!("there is nothing called {unknown} to be measured; there is: {names}");
    }
    interrupt::install()?;
    net::remove_stale(PREFIX).context("clearing up after an earlier run")?;
    let started = SystemTime::now();
    let mut figures = vec![figure(
        "flow_record_bytes",
        size_of::<vsnoop_bpf::types::flow>() as f64,
        "bytes",
        "lower",
    )];
    for (part, measure) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|name| name == part) {
            figures.extend(measure()?);
        }
    }
    let results = Results {
        experiment: "bench".into(),
        started: humantime::format_rfc3339_seconds(started).to_string(),
        environment: environment::describe(),
        samples: Vec::new(),
        summary: Vec::new(),
        figures,
    };
    println!("{}", table(&results.figures));
    if !wanted.is_empty() {
        return Ok(());
    }
    let dir = workspace::root()?.join("results/bench");
    results.write(&dir)?;
    println!("written: {}", dir.join("results.json").display());
    Ok(())
}

fn usage() -> String {
    let names = PARTS.map(|(part, _)| part).join(", ");
    format!(
        "Measures what vsnoop costs, as root.\n\nUsage: vsnoop-bench [NAME]...\n\nWithout names \
         everything is measured, and results/bench/results.json is written.\nNames: {names}"
    )
}

fn table(figures: &[Figure]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["figure", "value", "unit", "better"]);
    for figure in figures {
        let value = format!("{:.3}", figure.value);
        table.add_row([&figure.name, &value, &figure.unit, &figure.better]);
    }
    table
}
