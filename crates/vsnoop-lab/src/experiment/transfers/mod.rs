//! The runner `transfers`: uploads to VMs that share a core, as in section V-C of the vSnoop
//! report: one connection, and in the first cell also several at once.

mod counters;
mod difference;
mod report;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use vsnoop_guest::control::{Command, Reply, Uploaded};
use vsnoop_guest::transfer;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::Stage;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::lab::Lab;
use super::rounds::Trial;
use super::spent::Clock;
use super::ways::{Way, Ways, settle};
use crate::results::{Cell, Label, Sample, ms};
pub use counters::{HELD, HOLD_FULL};
use report::{AT_ONCE, HOST_BESIDE, SENDER};

pub const RUNNER: Runner = Runner {
    name: "transfers",
    run,
    tables: report::tables,
    figures: report::figures,
    goals: None,
    plots: report::plots,
    difference: difference::sentence,
};

const WARM_UP_BYTES: u64 = 10_000;

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Connections at once, besides a single one; 0: none.
    #[serde(default)]
    at_once: usize,
    /// Of each of them, at most.
    #[serde(default)]
    at_once_most_bytes: u64,
    /// Also with the host's packet work on the VMs' core.
    #[serde(default)]
    host_beside: bool,
    /// Also from another of the VMs, up to this size; 0: not.
    #[serde(default)]
    sender_most_bytes: u64,
    /// With counters of the hold.
    #[serde(default)]
    hold: bool,
}

/// Measures what a plan asks for.
pub fn run(task: Task) -> Result<()> {
    let settings = task.plan.settings()?;
    let configurations = task.plan.configurations()?;
    let first = task.plan.first_cell().context("a plan without cells")?;
    let mut transfers = Transfers { settings, configurations, first, ways: None };
    on_stages(task, guest::Options::default(), &mut transfers)
}

struct Transfers {
    settings: Settings,
    configurations: Vec<Configuration>,
    /// The cell in which several connections are measured.
    first: Cell,
    ways: Option<Ways>,
}

impl Transfers {
    fn way<'a>(
        &self,
        ground: &'a Ground,
        configuration: Configuration,
        machine: usize,
    ) -> Result<Way<'a>> {
        let ways = self.ways.as_ref().context("no stage was booted")?;
        ways.way(ground.stage, configuration, machine)
    }
}

impl Measure for Transfers {
    fn booted(&mut self, lab: &mut Lab, stage: &Stage) -> Result<()> {
        let port = transfer::PORT;
        self.ways = Some(Ways::open(&mut lab.session, stage, &self.configurations, port)?);
        Ok(())
    }

    fn enter(&mut self, ground: &Ground) -> Result<()> {
        for machine in 0..ground.stage.vm_count() {
            for &configuration in &self.configurations {
                let way = self.way(ground, configuration, machine)?;
                one(ground, way, WARM_UP_BYTES).context("the first transfer of a cell")?;
                if ground.cell == self.first && self.settings.sender_most_bytes > 0 {
                    let from = Ground { machine, ..*ground };
                    from_machine(&from, way, WARM_UP_BYTES).context("the first between VMs")?;
                }
            }
        }
        settle(ground.stage)
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let Trial { configuration, size_bytes, .. } = trial;
        let way = self.way(ground, configuration, ground.machine)?;
        let mut sample = one(ground, way, size_bytes)?;
        settle(ground.stage)?;
        if configuration == Configuration::Host {
            // No machine receives.
            sample.values.clear();
        }
        if self.settings.hold && configuration.attach_options().is_some() {
            // The port was attached for this transfer.
            sample.values.extend(counters::of_hold(&ground.stage.vsnoop()?.stats(way.tap)?));
        }
        let mut samples = vec![sample];
        if ground.cell != self.first {
            return Ok(samples);
        }
        if self.settings.at_once > 0 && size_bytes <= self.settings.at_once_most_bytes {
            samples.extend(at_once(ground, way, size_bytes, self.settings.at_once)?);
            settle(ground.stage)?;
        }
        if self.settings.host_beside {
            samples.push(host_beside(ground, way, size_bytes)?);
            settle(ground.stage)?;
        }
        if size_bytes <= self.settings.sender_most_bytes {
            samples.push(from_machine(ground, way, size_bytes)?);
        }
        Ok(samples)
    }

    fn leave(&mut self) {
        self.ways = None;
    }
}

fn label(text: &str) -> Result<Label> {
    Label::from(text).map_err(|_| anyhow!("{text:?} is too long for a label"))
}

fn one(ground: &Ground, way: Way, size_bytes: u64) -> Result<Sample> {
    let control = ground.cell.congestion_control.unwrap_or_default().name();
    let drops_before = ground.stage.counts_of(way.tap)?.drops;
    let before = Clock::read(ground.stage, ground.machine)?;
    let times = way.upload(ground.stage.client(), size_bytes, control)?;
    let values = Clock::read(ground.stage, ground.machine)?.since(&before);
    Ok(Sample {
        tap_drops: ground.stage.counts_of(way.tap)?.drops - drops_before,
        values,
        ..Sample::from(times)
    })
}

/// A transfer while the host's packet work is on the VMs' core.
fn host_beside(ground: &Ground, way: Way, size_bytes: u64) -> Result<Sample> {
    ground.stage.host_work_beside(true)?;
    let sample = one(ground, way, size_bytes);
    ground.stage.host_work_beside(false)?;
    Ok(Sample { what: Some(label(HOST_BESIDE)?), ..sample? })
}

/// A transfer from the next machine, which takes turns on the core with the receiver and the rest.
fn from_machine(ground: &Ground, way: Way, size_bytes: u64) -> Result<Sample> {
    let sender = (ground.machine + 1) % ground.stage.vm_count();
    ensure!(sender != ground.machine, "a sender in a VM needs two VMs");
    let drops_before = ground.stage.counts_of(way.tap)?.drops;
    let command = Command::Upload { server: way.server, size_bytes, seed: fastrand::u64(..) };
    let Uploaded { connect, acked, delivered, retransmissions } =
        match ground.stage.vm(sender).command(&command)? {
            Reply::Uploaded(times) => times,
            other => bail!("the guest answered {other:?} to an upload"),
        };
    Ok(Sample {
        what: Some(label(SENDER)?),
        connect_ms: Some(ms(connect)),
        acked_ms: Some(ms(acked)),
        delivered_ms: Some(ms(delivered)),
        retransmissions: u32::try_from(retransmissions).unwrap_or(u32::MAX),
        tap_drops: ground.stage.counts_of(way.tap)?.drops - drops_before,
        ..Sample::default()
    })
}

/// Several transfers that begin together, each in a connection of its own.
fn at_once(ground: &Ground, way: Way, size_bytes: u64, count: usize) -> Result<Vec<Sample>> {
    let what = Some(label(&format!("{count} {AT_ONCE}"))?);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..count).map(|_| scope.spawn(|| one(ground, way, size_bytes))).collect();
        let ended = threads.into_iter().map(|thread| {
            let sample = thread.join().map_err(|_| anyhow!("the thread of a transfer panicked"))?;
            Ok(Sample { what, ..sample? })
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use crate::experiment::declared::Declaration;
    use crate::experiment::definition::Options;
    use crate::results::incast::CongestionControl;

    #[test]
    fn a_sender_in_a_vm_has_cubic_alone_and_so_has_its_experiment() {
        let options =
            Options { congestion_controls: vec![CongestionControl::Bbr], ..Options::default() };
        let plan = |name: &str| Declaration::find(name).unwrap().plan(&options);
        assert!(plan("transfer-cdf").is_ok());
        let error = plan("transfer-sizes").unwrap_err().to_string();
        assert!(error.contains("does not take --congestion-control"), "{error}");
    }
}
