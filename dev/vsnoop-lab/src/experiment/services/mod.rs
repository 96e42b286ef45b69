//! The runner `services`: load generators against the services of one VM.
//!
//! The declaration lists services of the guest and workloads. A workload is known by the bytes of
//! one of its operations: that is its size in the plan. Each measurement is one run of its load
//! generator, on the host, in the directory of the guest's packages; what it prints becomes the
//! values of a sample ([`read`]).

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use vsnoop_testbed::contained::{self, Network, Sandbox};
use vsnoop_testbed::guest::{self, SystemImage};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::stage::vm_address;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::rounds::Trial;
use super::spent::Clock;
use super::systems;
use crate::results::statistics::{ascending, percentile};
use crate::results::{Label, Sample, Values, ms};

const SYSTEM: &str = include_str!("../../../systems/services.toml");
/// Before the script of each workload.
const PRELUDE: &str = include_str!("client.sh");
/// How long each workload runs before it is measured: again, and longer, while it finishes nothing,
/// on a machine with other work.
const WARM_UPS_S: [u64; 4] = [1, 2, 4, 8];
/// Far longer than a load generator takes that is given some seconds.
const LIMIT: Duration = Duration::from_secs(300);
/// Names of values that load generators print.
const NAMES: [&str; 4] = [RATE, "p50_ms", "p99_ms", "errors"];
const RATE: &str = "operations_per_s";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// How long a load generator runs, as far as it can be told.
    seconds: u64,
    service: Vec<systems::Service>,
    workload: Vec<Workload>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Workload {
    name: Label,
    bytes: u64,
    load: String,
}

pub fn run(task: Task) -> Result<()> {
    let plan = task.plan()?;
    let (settings, sizes) = (plan.settings::<Settings>()?, plan.sizes());
    sizes.iter().try_for_each(|bytes| settings.find(*bytes).map(drop))?;
    let system = guest::prepare_system(&systems::parse(SYSTEM)?)?;
    let image = system.image.clone();
    on_stages(task, image, &mut Services { settings, sizes, system, started: None })
}

impl Settings {
    fn find(&self, bytes: u64) -> Result<&Workload> {
        let found = self.workload.iter().find(|workload| workload.bytes == bytes);
        found.with_context(|| format!("no workload has operations of {bytes} bytes"))
    }
}

struct Services {
    settings: Settings,
    /// Sizes of operations in the workloads of this run.
    sizes: Vec<u64>,
    system: SystemImage,
    /// The process of the machine whose services run.
    started: Option<nix::unistd::Pid>,
}

impl Measure for Services {
    fn enter(&mut self, ground: &Ground) -> Result<()> {
        let vm = ground.stage.vm(ground.machine);
        if self.started.replace(vm.pid()) != Some(vm.pid()) {
            let address = vm_address(ground.machine, false);
            for service in &self.settings.service {
                service.start(vm, ground.stage.client(), address)?;
            }
            // Programs come from the disk, and are translated by the emulator, at their first use.
            for bytes in &self.sizes {
                let workload = self.settings.find(*bytes)?;
                self.warm_up(ground, workload)
                    .with_context(|| format!("warm up: {}", workload.name))?;
            }
        }
        Ok(())
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let workload = self.settings.find(trial.size_bytes)?;
        let before = Clock::read(ground.stage, ground.machine)?;
        let measured = self.load(ground, workload, self.settings.seconds);
        let mut values = measured.with_context(|| workload.name.to_string())?;
        values.extend(Clock::read(ground.stage, ground.machine)?.since(&before));
        Ok(vec![Sample { what: Some(workload.name), values, ..Sample::default() }])
    }
}

impl Services {
    fn warm_up(&self, ground: &Ground, workload: &Workload) -> Result<()> {
        let mut last = Ok(());
        for seconds in WARM_UPS_S {
            last = self.load(ground, workload, seconds).map(drop);
            if last.is_ok() || interrupt::check().is_err() {
                break;
            }
        }
        last
    }

    fn load(&self, ground: &Ground, workload: &Workload, seconds: u64) -> Result<Values> {
        let server = vm_address(ground.machine, false);
        let script = format!("server={server} seconds={seconds}\n{PRELUDE}\n{}", workload.load);
        let log = ground.lab.session.scratch().join("load");
        let sandbox =
            Sandbox { network: Network::Of(ground.stage.client()), root: Some(&self.system.tree) };
        let begin = Instant::now();
        let mut running = contained::start(&sandbox, &script, Some(&log))?;
        let status = running.wait(LIMIT)?;
        let took = begin.elapsed();
        let output = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let output = String::from_utf8_lossy(&output);
        let last = || contained::last_lines(&output);
        if !status.success() {
            bail!("the load generator ended with {status}: {}", last());
        }
        read(&output, took).with_context(|| format!("the load generator printed: {}", last()))
    }
}

/// The values that a load generator has printed. A line is a value with its name or an operation:
/// `us` with its microseconds, or `failed`. `took`: with all preparations.
fn read(output: &str, took: Duration) -> Result<Values> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), value.trim().parse::<f64>().ok()?))
    };
    let printed = || output.lines().filter_map(pair);
    let times = printed().filter(|(name, _)| name == "us").map(|(_, us)| us / 1e3);
    let times = ascending(times);
    let failed = output.lines().filter(|line| *line == "failed").count();
    let mut values = Values::from([("errors".to_owned(), failed as f64)]);
    for (name, percent) in [("p50_ms", 50.0), ("p99_ms", 99.0)] {
        values.extend(percentile(&times, percent).map(|time| (name.to_owned(), time)));
    }
    let rate = times.len() as f64 / took.as_secs_f64();
    values.extend([(RATE.to_owned(), rate), ("took_ms".to_owned(), ms(took))]);
    values.extend(printed().filter(|(name, _)| NAMES.contains(&&**name)));
    ensure!(values.contains_key("p50_ms"), "no operation was finished");
    values.insert("operations".to_owned(), values[RATE] * took.as_secs_f64());
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(output: &str) -> Values {
        read(output, Duration::from_secs(2)).unwrap()
    }

    #[test]
    fn values_that_are_printed_by_name_are_kept_among_other_text() {
        let text = "Running 4s test @ http://10.77.0.10/page\nRequests/sec:    329.92\n\
            p50_ms\t0.98\noperations_per_s\t329.92\nerrors\t7\np99_ms\t1020\n";
        let expected = [("errors", 7.0), (RATE, 329.92), ("p50_ms", 0.98), ("p99_ms", 1020.0)];
        let expected = expected.into_iter().chain([("took_ms", 2000.0), ("operations", 659.84)]);
        assert_eq!(values(text), expected.map(|(name, one)| (name.to_owned(), one)).collect());
        assert!(read("unable to connect", Duration::from_secs(1)).is_err());
    }

    #[test]
    fn single_times_give_percentiles_and_those_that_failed_are_errors() {
        let measured = values("us 1000\nfailed\nus 3000\nus 2000\n");
        assert_eq!((measured[RATE], measured["p50_ms"], measured["p99_ms"]), (1.5, 2.0, 2.98));
        assert_eq!((measured["operations"], measured["errors"]), (3.0, 1.0));
        assert!(read("failed\n", Duration::from_secs(1)).is_err());
    }
}
