//! The smallest cells, where ns-3 is installed (`make sim` installs it). Elsewhere they count as
//! skipped.
//!
//! The simulator is built of the sources as they are, in seconds once its parts are there.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_sim::cell::{Cell, Configuration, Kind, Outcome};
use vsnoop_sim::figures;
use vsnoop_sim::record::{Done, Record};
use vsnoop_sim::scenario::Scenario;

/// Headers of ns-3 in Debian.
const NS3: &str = "/usr/include/ns3/core-module.h";
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let is_there = Path::new(NS3).exists();
    if !is_there {
        eprintln!("skipped: ns-3 is not installed; make sim installs it");
    }
    let trial = |name: &str, run: fn() -> Result<()>| {
        Trial::test(name, move || run().map_err(|error| Failed::from(format!("{error:#}"))))
            .with_ignored_flag(!is_there)
    };
    let trials = vec![
        trial("forty_senders_lose_nothing_with_incast_control_and_collapse_without", forty_senders),
        trial("a_standing_vm_is_answered_for", a_standing_vm),
        trial("flows_without_an_end_have_equal_shares_with_incast_control", flows),
        trial("uploads_to_a_vm_that_waits_as_recorded_are_sooner_with_early_acks", || {
            sooner(Kind::Uploads, Configuration::Early)
        }),
        trial("downloads_from_a_vm_that_waits_as_recorded_are_sooner_when_split", || {
            sooner(Kind::Downloads, Configuration::Split)
        }),
        trial("an_interrupted_run_keeps_its_cells", an_interrupted_run),
        trial("the_scenario_is_understood", the_scenario),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The program of a cell, built if it is not there or older than its sources.
fn program() -> Result<PathBuf> {
    let status = Command::new("sh").arg(root().join("scripts/sim.sh")).arg("--build").status()?;
    ensure!(status.success(), "scripts/sim.sh --build failed");
    Ok(root().join("target/release/vsnoop-sim-cell"))
}

fn run(cell: &Cell) -> Result<Outcome> {
    run_with_waits(cell, &[])
}

fn run_with_waits(cell: &Cell, turns_us: &[u32]) -> Result<Outcome> {
    cell.run(&program()?, turns_us, LIMIT)?.context("it took too long")
}

fn forty_senders() -> Result<()> {
    let cell = |configuration| Cell { configuration, senders: 40, rounds: 3, ..Cell::default() };
    let off = run(&cell(Configuration::Off))?;
    let incast = run(&cell(Configuration::Incast))?;
    ensure!(off.ended == 3 && off.timeouts > 0, "nothing to gain here: {off:?}");
    let line = cell(Configuration::Incast).line_mbps();
    ensure!(incast.ended == 3 && incast.timeouts + incast.drops == 0, "{incast:?}");
    ensure!(incast.goodput_mbps > 0.9 * line, "{incast:?}");
    Ok(())
}

fn a_standing_vm() -> Result<()> {
    let cell = |configuration| Cell {
        configuration,
        senders: 2,
        rounds: 5,
        stop_ms: 30,
        period_ms: 90,
        ..Cell::default()
    };
    let off = run(&cell(Configuration::Off))?;
    let early = run(&cell(Configuration::Early))?;
    ensure!(off.ended == 5 && early.ended == 5, "{off:?} {early:?}");
    let acks = early.others.get("early_acks").and_then(serde_json::Value::as_u64);
    ensure!(acks > Some(0), "no early ACK: {early:?}");
    Ok(())
}

fn flows() -> Result<()> {
    let cell = Cell {
        kind: Kind::Flows,
        configuration: Configuration::Incast,
        gbps: 0.2,
        senders: 4,
        seconds: 0.4,
        ..Cell::default()
    };
    let outcome = run(&cell)?;
    ensure!(outcome.other("jain") > Some(0.95), "{outcome:?}");
    ensure!(outcome.other("converged_ms").is_some(), "the last flow has no share: {outcome:?}");
    Ok(())
}

fn sooner(kind: Kind, with: Configuration) -> Result<()> {
    let cell = |configuration| Cell {
        kind,
        configuration,
        gbps: 0.2,
        senders: 2,
        vms: 2,
        answer_bytes: 300_000,
        buffer_bytes: 1_000_000,
        rtt_us: 20_000.0,
        gap_ms: 50.0,
        rounds: 3,
        ..Cell::default()
    };
    let turns_us = [15_000, 60_000, 10_000, 40_000];
    let off = run_with_waits(&cell(Configuration::Off), &turns_us)?;
    let with = run_with_waits(&cell(with), &turns_us)?;
    ensure!(off.ended == 3 && with.ended == 3, "{off:?} {with:?}");
    ensure!(off.vm_ms.len() == 2 && with.vm_ms.len() == 2, "one median for each VM");
    ensure!(with.completion_p50_ms < 0.7 * off.completion_p50_ms, "{off:?} {with:?}");
    Ok(())
}

fn an_interrupted_run() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("vsnoop-sim-{}", std::process::id()));
    let cell = Cell { senders: 4, rounds: 1, ..Cell::default() };
    let outcome = Some(run(&cell)?);
    let mut record = Record::open(&dir, false, Default::default())?;
    record.push(Done { cell: cell.clone(), outcome, wall_s: 0.0 })?;
    drop(record);
    let record = Record::open(&dir, false, Default::default());
    let is_kept = record.map(|record| record.has(&cell));
    std::fs::remove_dir_all(&dir)?;
    ensure!(is_kept?, "the cell is lost");
    Ok(())
}

fn the_scenario() -> Result<()> {
    let scenario = Scenario::load(&root().join("dev/sim/scenario.toml"))?;
    let is_there = |lab: &&vsnoop_sim::scenario::Lab| {
        scenario.cells.iter().any(|cell| {
            cell.series == figures::VALIDATION
                && (cell.kind, cell.configuration) == (lab.kind, lab.configuration)
                && (cell.gbps, cell.senders) == (lab.gbps, lab.senders)
                && cell.answer_bytes == lab.answer_bytes
        })
    };
    let missing: Vec<_> = scenario.lab.iter().filter(|lab| !is_there(lab)).collect();
    ensure!(missing.is_empty(), "measured by the lab, and not simulated: {missing:?}");
    Ok(())
}
