//! The runner `services`: load generators against the services of one VM.
//!
//! The declaration lists services of the guest and workloads. A workload is known by the bytes of
//! one of its operations: that is its size in the plan. Each measurement is one run of its load
//! generator, on the host, in the directory of the guest's packages.

mod output;
mod summary;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use vsnoop_testbed::contained::{self, Network, Sandbox};
use vsnoop_testbed::guest::{self, SystemImage};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::stage::vm_address;

use self::output::{Measured, Output};
use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::rounds::Trial;
use super::spent::Clock;
use super::systems;
use crate::results::{Label, Sample, ms};

pub const RUNNER: Runner = Runner {
    name: "services",
    run,
    tables: summary::tables,
    figures: summary::figures,
    goals: None,
    plots: summary::plots,
    difference: |_| None,
};

const SYSTEM: &str = include_str!("../../../systems/services.toml");
/// Before the script of each workload.
const PRELUDE: &str = include_str!("client.sh");
/// How long each workload runs before it is measured: again, and longer, while it finishes nothing,
/// on a machine with other work.
const WARM_UPS_S: [u64; 4] = [1, 2, 4, 8];
/// Far longer than a load generator takes that is given some seconds.
const LIMIT: Duration = Duration::from_secs(300);

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
    output: Output,
    load: String,
}

fn run(task: Task) -> Result<()> {
    let settings: Settings = task.plan.settings()?;
    let sizes = task.plan.sizes();
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
    /// Of the workloads of this run.
    sizes: Vec<u64>,
    system: SystemImage,
    /// The process of the machine whose services run.
    started: Option<nix::unistd::Pid>,
}

impl Measure for Services {
    fn enter(&mut self, ground: &Ground) -> Result<()> {
        let client = ground.stage.client();
        let vm = ground.stage.vm(ground.machine);
        if self.started.replace(vm.pid()) != Some(vm.pid()) {
            let address = vm_address(ground.machine, false);
            for service in &self.settings.service {
                service.start(vm, client, address)?;
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
        let (before, begin) = (Clock::read(ground.stage, ground.machine)?, Instant::now());
        let measured = self.load(ground, workload, self.settings.seconds);
        let measured = measured.with_context(|| workload.name.to_string())?;
        let spent = Clock::read(ground.stage, ground.machine)?.since(&before);
        let values = [
            (summary::RATE, measured.operations_per_s),
            (summary::P50, measured.p50_ms),
            (summary::P99, measured.p99_ms),
            (summary::ERRORS, measured.errors),
            (summary::TOOK, ms(begin.elapsed())),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        let values = values.into_iter().chain(spent).collect();
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

    fn load(&self, ground: &Ground, workload: &Workload, seconds: u64) -> Result<Measured> {
        let server = vm_address(ground.machine, false);
        let script = format!("server={server} seconds={seconds}\n{PRELUDE}\n{}", workload.load);
        let log = ground.lab.session.scratch().join("load");
        let sandbox =
            Sandbox { network: Network::Of(ground.stage.client()), root: Some(&self.system.tree) };
        let begin = Instant::now();
        let mut running = contained::start(&sandbox, &script, Some(&log))?;
        let status = running.wait(LIMIT)?;
        let elapsed_s = begin.elapsed().as_secs_f64();
        let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        if !status.success() {
            let end: Vec<_> = text.lines().rev().take(4).collect();
            bail!("the load generator ended with {status}: {}", end.join(" | "));
        }
        workload.output.read(&text, elapsed_s)
    }
}
