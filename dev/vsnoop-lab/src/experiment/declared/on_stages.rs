//! The loop of runners that measure VMs on a [`Stage`]: boots them for each number of machines and
//! each way to share the core, sets up load, path and configuration, and measures in rounds.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use vsnoop_guest::control::Command;
use vsnoop_guest::transfer;
use vsnoop_testbed::guest::Image;
use vsnoop_testbed::stage::path::PathOptions;
use vsnoop_testbed::stage::{Stage, StageOptions, vm_address};
use vsnoop_testbed::vm::{Begin, SLICE, Share};
use vsnoop_testbed::vsnoop::Vsnoop;

use super::file::Task;
use super::parts::{Parts, distinct};
use crate::experiment::configuration::Configuration;
use crate::experiment::lab::{LOAD_PERIOD_MS, Lab};
use crate::experiment::path_check::check_path;
use crate::experiment::progress::Progress;
use crate::experiment::rounds::{Named, Rounds, Trial};
use crate::experiment::ways::{Way, Ways};
use crate::results::record::Record;
use crate::results::statistics::{ascending, percentile};
use crate::results::{Cell, ROUNDS_PLANNED, Results, Sample, size_text};

/// Before each measurement.
const PAUSE_MS: std::ops::Range<u64> = 5..100;
/// Enough for the other end to be resolved.
const FIRST_PINGS: u16 = 2;

/// Machines and a path, ready for a measurement.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub lab: &'a Lab,
    pub stage: &'a Stage,
    ways: &'a Ways,
    pub cell: Cell,
    /// The machine of this round; the machines take turns.
    pub machine: usize,
}

impl<'a> Ground<'a> {
    /// Where the client connects to in a configuration, for the machine of this round.
    pub fn way(&self, configuration: Configuration) -> Result<Way<'a>> {
        self.ways.way(self.stage, configuration, self.machine)
    }

    /// Returns the same round at another machine.
    pub fn at(&self, machine: usize) -> Self {
        Self { machine, ..*self }
    }

    /// The name of the cell's congestion control.
    pub fn control(&self) -> &'static str {
        self.cell.congestion_control.unwrap_or_default().name()
    }

    /// CPU time of each machine so far.
    pub fn cpu_times(&self) -> Result<Vec<Duration>> {
        let machines = 0..self.stage.vm_count();
        machines.map(|machine| self.stage.vm(machine).vcpu_time()).collect()
    }
}

/// A runner's part of the loop.
pub trait Measure {
    /// Where the servers of the machines listen.
    fn port(&self) -> u16 {
        transfer::PORT
    }

    /// Starts what the machines of a stage need beside them.
    fn booted(&mut self, _lab: &mut Lab, _stage: &Stage) -> Result<()> {
        Ok(())
    }

    /// Prepares a cell; its machines run, with their load.
    fn enter(&mut self, _ground: &Ground) -> Result<()> {
        Ok(())
    }

    /// The machines for which the configuration of a turn is set up.
    fn accelerated(&self, machine: usize) -> Vec<usize> {
        vec![machine]
    }

    /// The load of a machine, where that of the cell is not for all of them.
    fn load(&self, _machine: usize, cell: &Cell) -> f64 {
        cell.load
    }

    /// The period of that load.
    fn load_period_ms(&self) -> u32 {
        LOAD_PERIOD_MS
    }

    /// Options of `vsnoop attach`, beside those of the configuration.
    fn attach_options(&self, _cell: &Cell) -> Vec<&str> {
        Vec::new()
    }

    /// One measurement; the configuration is set up. Samples need only what was measured: their
    /// configuration, size, cell, turn and time are filled in.
    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>>;

    /// Samples of the turns that machines have begun meanwhile, under slices.
    fn turns(&mut self, _begun: &[Begin]) -> Vec<Sample> {
        Vec::new()
    }

    /// Ends the processes that the measurement has started, before the stage ends.
    fn leave(&mut self) {}
}

/// Measures everything that a plan asks for and an earlier run has not measured.
pub fn on_stages(task: Task, image: Image, runner: &mut impl Measure) -> Result<()> {
    let Task { experiment, options, record } = task;
    let plan = experiment.plan(options)?;
    record.results.environment.insert(ROUNDS_PLANNED.into(), json!(plan.round_count()));
    let configurations = plan.configurations()?;
    let attaches = configurations.iter().any(|one| one.attach_options().is_some());
    let vsnoop = if attaches { Some(Vsnoop::find()?) } else { None };
    let mut lab = Lab::open(image)?;
    lab.describe(&mut record.results.environment);
    let period_ms = runner.load_period_ms();
    record.results.environment.extend(conditions(&plan, period_ms));
    if let Some(vsnoop) = &vsnoop {
        record.results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    }
    for control in plan.iter().flat_map(|part| &part.congestion_controls) {
        lab.session.allow_congestion_control(control.name())?;
    }
    let machines = plan.machines();
    let mut stages = Vec::new();
    for machines in &machines {
        let cells = machines.cells.iter().map(|(cell, part)| Ok((*cell, part.rounds()?)));
        stages.push((machines, cells.collect::<Result<Vec<_>>>()?));
    }
    let count = |cells: &[(Cell, Rounds<_>)]| cells.iter().map(|(_, rounds)| rounds.count()).sum();
    let mut progress = Progress::new(stages.iter().map(|(_, cells)| count(cells)).sum());
    for (machines, cells) in stages {
        let (done, left): (Vec<_>, Vec<_>) =
            cells.into_iter().partition(|(cell, rounds)| rounds.is_done(cell, record));
        progress.skip(count(&done));
        if left.is_empty() {
            continue;
        }
        let options = StageOptions {
            vms: machines.vms,
            tuned: configurations.iter().any(|one| one.is_tuned()),
        };
        let environment = &mut record.results.environment;
        let mut stage = lab.boot(options, machines.share, vsnoop.as_ref(), environment)?;
        runner.booted(&mut lab, &stage)?;
        let ways = Ways::open(&mut lab.session, &stage, &configurations, runner.port())?;
        for (cell, rounds) in left {
            let mut waits_ms = Vec::new();
            load(runner, &stage, &cell, machines.unit_of_load())
                .and_then(|()| {
                    enter(&mut stage, cell, record)?;
                    runner.enter(&Ground {
                        lab: &lab,
                        stage: &stage,
                        ways: &ways,
                        cell,
                        machine: 0,
                    })?;
                    stage.take_turns();
                    rounds.measure(cell, record, &mut progress, |trial| {
                        let ground =
                            Ground { lab: &lab, stage: &stage, ways: &ways, cell, machine: 0 };
                        let mut samples = measure(runner, ground, trial)?;
                        let begun = stage.take_turns();
                        let waits = begun.iter().map(|begin| begin.waited.as_secs_f64() * 1e3);
                        waits_ms.extend(waits);
                        samples.extend(runner.turns(&begun));
                        Ok(samples)
                    })
                })
                .with_context(|| cell.to_string())?;
            describe_turns(&mut record.results, &cell, waits_ms);
            let overflows = stage.path_overflows();
            if overflows > 0 {
                eprintln!("{cell}: the path's own queue was full and lost {overflows} frames");
            }
        }
        // Their processes end before the stage.
        runner.leave();
        drop(ways);
    }
    Ok(())
}

/// Conditions of a plan's machines and clients, for the report: only those that apply to it.
fn conditions(plan: &Parts, load_period_ms: u32) -> BTreeMap<String, Value> {
    let controls = plan.iter().flat_map(|part| &part.congestion_controls).map(|one| one.name());
    let shares = plan.iter().flat_map(|part| &part.shares).map(|share| share.text());
    let mut conditions = BTreeMap::from([
        ("congestion_control".to_owned(), json!(distinct(controls).join(", "))),
        ("share".to_owned(), json!(distinct(shares).join(", "))),
    ]);
    if plan.iter().any(|part| part.loads.iter().any(|load| *load > 0.0)) {
        conditions.insert("load_period_ms".into(), json!(load_period_ms));
    }
    if plan.iter().any(|part| part.shares.contains(&Share::Slices)) {
        conditions.insert("slice_ms".into(), json!(SLICE.as_millis() as u64));
    }
    conditions
}

/// Sets the congestion control of a cell, lays its path, measures it, and resolves the machines.
fn enter(stage: &mut Stage, cell: Cell, record: &mut Record) -> Result<()> {
    let control = cell.congestion_control.unwrap_or_default().name();
    // Clients, load generators and a proxy take the default of their namespace.
    for netns in [stage.client(), stage.host()] {
        netns.set_sysctl("net.ipv4.tcp_congestion_control", control)?;
    }
    let rtt = Duration::from_secs_f64(cell.path_rtt_ms / 1e3);
    stage.set_path(&PathOptions {
        rtt,
        segment_loss: cell.path_loss_percent / 100.0,
        link: cell.path_link,
    })?;
    let path = check_path(stage, rtt)?;
    let text = format!("ping p50 {:.2} ms, p90 {:.2} ms", path.p50_ms, path.p90_ms);
    record.results.environment.insert(format!("path_{}", cell.suffix()), json!(text));
    for machine in 0..stage.vm_count() {
        stage.client().ping(vm_address(machine, false), FIRST_PINGS)?;
    }
    Ok(())
}

/// `unit`: the part of a core that is a load of 1.
fn load(runner: &impl Measure, stage: &Stage, cell: &Cell, unit: f64) -> Result<()> {
    for machine in 0..stage.vm_count() {
        let share = runner.load(machine, cell) * unit;
        let period_ms = runner.load_period_ms();
        stage.vm(machine).command(&Command::Load { share, period_ms })?;
    }
    Ok(())
}

/// How long machines waited for their turns, for the report.
fn describe_turns(results: &mut Results, cell: &Cell, waits_ms: Vec<f64>) {
    let waits_ms = ascending(waits_ms.into_iter());
    let at = |percent| percentile(&waits_ms, percent);
    if let (Some(p10), Some(p50), Some(p90)) = (at(10.0), at(50.0), at(90.0)) {
        let n = waits_ms.len();
        let text = format!("{n} turns, waited for p10 {p10:.0}, p50 {p50:.0}, p90 {p90:.0} ms");
        results.environment.insert(format!("turns_{}", cell.suffix()), json!(text));
    }
}

fn measure(
    runner: &mut impl Measure,
    ground: Ground,
    trial: Trial<Configuration>,
) -> Result<Vec<Sample>> {
    let Ground { stage, cell, .. } = ground;
    let machine = trial.round % stage.vm_count();
    let what = || format!("{}, {}", trial.configuration.name(), size_text(trial.size_bytes));
    for accelerated in runner.accelerated(machine) {
        let options = runner.attach_options(&cell);
        trial.configuration.set_up(stage, accelerated, &options).with_context(what)?;
    }
    std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
    let mut samples = runner.measure(&ground.at(machine), trial).with_context(what)?;
    for accelerated in runner.accelerated(machine) {
        trial.configuration.undo(stage, accelerated).with_context(what)?;
    }
    samples.iter_mut().for_each(|sample| sample.vm = machine);
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::declared::Experiment;
    use crate::experiment::options::Options;

    #[test]
    fn the_environment_names_what_the_plan_has_and_nothing_else() {
        let named = |name: &str| {
            let plan = Experiment::find(name).unwrap().plan(&Options::default()).unwrap();
            conditions(&plan, 70)
        };
        let (uploads, ping) = (named("uploads"), named("ping"));
        assert_eq!(uploads["congestion_control"], "cubic, bbr");
        assert!(uploads["share"].as_str().unwrap().contains("quota of 10 %"), "{uploads:?}");
        assert_eq!(uploads.get("slice_ms"), None);
        assert_eq!(named("profile").get("load_period_ms"), None, "it has no load");
        assert_eq!((&ping["slice_ms"], &ping["load_period_ms"]), (&30.into(), &70.into()));
    }
}
