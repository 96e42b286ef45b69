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
//! - [`stuck_log`]: how long a link takes to say how it is while its log is not read;
//! - [`tiny_segments`]: what a VM that sends super-packets of one-byte segments costs the others;
//! - [`forged_addresses`]: what a VM that invents source addresses costs a VM beside it;
//! - [`nat_resume`]: how long a transfer takes after a silence that a NAT does not survive;
//! - [`router`]: uploads through a VM that forwards to a slower path with a smaller MTU;
//! - [`idle_guest`]: uploads to a machine that is idle and loses segments behind its ring;
//! - [`downloads::sender`]: what sockets of split connections make of a path, against Linux itself;
//! - [`downloads::small`]: small answers of a VM that is late, against those without vsnoop;
//! - [`downloads::prompt`]: one flow that a prompt VM sends, which nothing is to be gained for;
//! - [`downloads::pause`]: how long what these sockets hold takes to leave after `pause`;
//! - [`proxy`]: what bulk transfers of a late VM cost the host, and how fast they are, with vsnoop
//!   and with HAProxy;
//! - [`verifier`]: how long attaching takes, and the instructions that the kernel walks before it
//!   accepts a hook.
//! - [`idle`]: memory that an attached idle port takes.

mod compress;
mod conversation;
mod downloads;
mod figures;
mod fleet;
mod flows;
mod forged_addresses;
mod idle;
mod idle_guest;
mod incast;
mod lookup;
mod memory;
mod nat_resume;
mod packet;
mod proxy;
mod router;
mod slow_peer;
mod stage;
mod stuck_log;
mod throughput;
mod tiny_segments;
mod verifier;

use anyhow::{Context, Result};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use vsnoop_lab::experiment::environment;
use vsnoop_lab::results::{Figure, Results};
use vsnoop_testbed::{interrupt, net, workspace};

use figures::figure;
use stage::PREFIX;

/// Measures what vsnoop costs, as root.
///
/// results/bench/results.json gets the figures; those of benchmarks that do not run stay in it.
#[derive(Parser)]
#[command(name = "vsnoop-bench", version)]
struct Options {
    /// Measurements to run; without a name all but sender_all, which is sender over more paths
    #[arg(value_name = "NAME", value_parser = known_names())]
    names: Vec<String>,
}

fn known_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PARTS.iter().chain(&LONG_PARTS).map(|(name, _)| *name))
}

/// The measurements, by the names of their modules.
type Part = (&'static str, fn() -> Result<Vec<Figure>>);
const PARTS: [Part; 20] = [
    ("idle", idle::measure),
    ("lookup", lookup::measure),
    ("incast", incast::measure),
    // The command starts a helper, which clears uplinks away that no port is behind yet.
    ("verifier", verifier::measure),
    ("packet", packet::measure),
    ("compress", compress::measure),
    ("fleet", fleet::measure),
    ("slow_peer", slow_peer::measure),
    ("stuck_log", stuck_log::measure),
    ("tiny_segments", tiny_segments::measure),
    ("forged_addresses", forged_addresses::measure),
    ("nat_resume", nat_resume::measure),
    ("router", router::measure),
    ("idle_guest", idle_guest::measure),
    ("sender", downloads::sender::measure),
    ("pause", downloads::pause::measure),
    ("small", downloads::small::measure),
    ("prompt", downloads::prompt::measure),
    ("proxy", proxy::measure),
    ("throughput", throughput::measure),
];
/// Only if they are named.
const LONG_PARTS: [Part; 1] = [("sender_all", downloads::sender::measure_all)];

fn main() {
    let options = Options::parse();
    if let Err(error) = run(&options.names) {
        if interrupt::interrupted() {
            std::process::exit(interrupt::EXIT_STATUS);
        }
        eprintln!("vsnoop-bench: {error:#}");
        std::process::exit(1);
    }
}

fn run(wanted: &[String]) -> Result<()> {
    interrupt::install()?;
    net::remove_stale(PREFIX).context("clearing up after an earlier run")?;
    let mut results = Results::begin("bench", environment::describe());
    // Without incast control.
    let record = std::mem::offset_of!(vsnoop_bpf::types::flow, incast) as f64;
    results.figures.push(figure("flow_record_bytes", record, "bytes", "lower"));
    let is_named = |part: &Part| wanted.iter().any(|name| name == part.0);
    let usual = PARTS.into_iter().filter(|part| wanted.is_empty() || is_named(part));
    for (_, measure) in usual.chain(LONG_PARTS.into_iter().filter(is_named)) {
        results.figures.extend(measure()?);
    }
    println!("{}", table(&results.figures));
    let dir = workspace::root()?.join("results/bench");
    if !wanted.is_empty()
        && let Ok(before) = Results::read(&dir)
    {
        results.figures = merged(before.figures, results.figures);
    }
    results.write(&dir)?;
    println!("written: {}", dir.join("results.json").display());
    Ok(())
}

/// The figures of an earlier run, with those that were measured again in their places.
fn merged(before: Vec<Figure>, measured: Vec<Figure>) -> Vec<Figure> {
    let mut all = before;
    for figure in measured {
        match all.iter_mut().find(|known| known.name == figure.name) {
            Some(known) => *known = figure,
            None => all.push(figure),
        }
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_are_not_measured_again_stay() {
        let nanoseconds = |name: &str, value| figure(name, value, "ns", "lower");
        let all = merged(
            vec![nanoseconds("a", 1.0), nanoseconds("b", 2.0)],
            vec![nanoseconds("b", 3.0), nanoseconds("c", 4.0)],
        );
        let all: Vec<_> = all.iter().map(|it| (it.name.as_str(), it.value)).collect();
        assert_eq!(all, [("a", 1.0), ("b", 3.0), ("c", 4.0)]);
    }

    #[test]
    fn help_is_no_name_of_a_benchmark() {
        let help = Options::try_parse_from(["vsnoop-bench", "--help"]).err().expect("a help page");
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
        assert!(Options::try_parse_from(["vsnoop-bench", "no-such-name"]).is_err());
    }
}
