//! The runner `transfers`: uploads to VMs that share a core, as in section V-C of the vSnoop
//! report: one connection, and in the first cell also several at once. A capture shows how each
//! came on ([`trace`], Fig. 2 of the report), or where the time goes ([`matching`], Fig. 1).

mod matching;
mod trace;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use vsnoop_guest::control::{Command, Reply, Uploaded};
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::Stage;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::lab::{Lab, guest_image};
use super::rounds::Trial;
use super::spent::{self, Clock};
use super::ways::{Way, settle};
use crate::results::{
    ACKED, CONNECT, Cell, DELIVERED, Label, RETRANSMISSIONS, Sample, TAP_DROPS, ms,
};

/// Names of samples: several connections; one with the host's packet work on the VMs' core; one
/// whose sender is another of the VMs.
const AT_ONCE: &str = "at once";
const HOST_BESIDE: &str = "host on their core";
const SENDER: &str = "sender in a VM";
/// Counters of `vsnoop stats`: acknowledged before its hand-over to the VM; segments that found no
/// memory to be kept in.
const COUNTERS: [&str; 2] = ["held_bytes", "hold_full"];

const WARM_UP_BYTES: u64 = 10_000;

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Connections at once, besides a single one; 0: none.
    #[serde(default)]
    at_once: usize,
    /// The most bytes of each of them.
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
    capture: Option<CaptureAt>,
}

/// Where segments are captured.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CaptureAt {
    Client,
    Host,
}

/// Measures what a plan asks for.
pub fn run(task: Task) -> Result<()> {
    let plan = task.plan()?;
    let (settings, configurations) = (plan.settings()?, plan.configurations()?);
    let first = plan.first_cell().context("a plan without cells")?;
    let mut transfers = Transfers { settings, configurations, first, capture: None };
    on_stages(task, guest_image(guest::Options::default())?, &mut transfers)
}

struct Transfers {
    settings: Settings,
    configurations: Vec<Configuration>,
    /// The cell in which several connections are measured.
    first: Cell,
    capture: Option<Capture>,
}

impl Measure for Transfers {
    fn booted(&mut self, _: &mut Lab, stage: &Stage) -> Result<()> {
        self.capture = match self.settings.capture {
            Some(CaptureAt::Client) => Some(Capture::start(stage.client())?),
            Some(CaptureAt::Host) => Some(Capture::start(stage.host())?),
            None => None,
        };
        Ok(())
    }

    fn enter(&mut self, ground: &Ground) -> Result<()> {
        for machine in 0..ground.stage.vm_count() {
            for &configuration in &self.configurations {
                let ground = &ground.at(machine);
                let way = ground.way(configuration)?;
                upload(ground, way, WARM_UP_BYTES).context("the first transfer of a cell")?;
                if ground.cell == self.first && self.settings.sender_most_bytes > 0 {
                    from_machine(ground, way, WARM_UP_BYTES).context("the first between VMs")?;
                }
            }
        }
        settle(ground.stage)
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let Trial { configuration, size_bytes, .. } = trial;
        let way = ground.way(configuration)?;
        // Those from before this transfer.
        self.capture.as_ref().map_or(Ok(Vec::new()), Capture::take)?;
        let mut sample = upload(ground, way, size_bytes)?;
        settle(ground.stage)?;
        let segments = self.capture.as_ref().map_or(Ok(Vec::new()), Capture::take)?;
        match self.settings.capture {
            Some(CaptureAt::Host) => {
                ensure!(
                    configuration.attach_options().is_none(),
                    "a VM whose data the host acknowledges does not show when it consumes them"
                );
                let passed = matching::match_up(&segments).context("the transfer was not seen")?;
                return Ok(passed.samples());
            }
            Some(CaptureAt::Client) => {
                trace::trace(&segments).context("the transfer was not seen")?.add_to(&mut sample);
            }
            None => (),
        }
        if configuration == Configuration::Host {
            // No machine receives.
            sample.values.retain(|name, _| !spent::NAMES.contains(&name.as_str()));
        }
        if self.settings.hold && configuration.attach_options().is_some() {
            // The port was attached for this transfer.
            let stats = ground.stage.vsnoop()?.stats(way.tap)?;
            let counter = |name| Some((name, stats["ports"][0][name].as_u64()? as f64));
            sample.values.extend(Sample::with(COUNTERS.into_iter().filter_map(counter)).values);
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
        self.capture = None;
    }
}

fn upload(ground: &Ground, way: Way, size_bytes: u64) -> Result<Sample> {
    let drops_before = ground.stage.counts_of(way.tap)?.drops;
    let before = Clock::read(ground.stage, ground.machine)?;
    let times = way.upload(ground.stage.client(), size_bytes, ground.control())?;
    let values = Clock::read(ground.stage, ground.machine)?.since(&before);
    let mut sample = Sample::from(times);
    sample.values.extend(values);
    let drops = ground.stage.counts_of(way.tap)?.drops - drops_before;
    sample.values.insert(TAP_DROPS.into(), drops as f64);
    Ok(sample)
}

/// A transfer while the host's packet work is on the VMs' core.
fn host_beside(ground: &Ground, way: Way, size_bytes: u64) -> Result<Sample> {
    ground.stage.host_work_beside(true)?;
    let sample = upload(ground, way, size_bytes);
    ground.stage.host_work_beside(false)?;
    Ok(Sample { what: Label::from(HOST_BESIDE).ok(), ..sample? })
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
    let drops = ground.stage.counts_of(way.tap)?.drops - drops_before;
    let values = [
        (CONNECT, ms(connect)),
        (ACKED, ms(acked)),
        (DELIVERED, ms(delivered)),
        (RETRANSMISSIONS, retransmissions as f64),
        (TAP_DROPS, drops as f64),
    ];
    Ok(Sample { what: Label::from(SENDER).ok(), ..Sample::with(values) })
}

/// Several transfers that begin together, each in a connection of its own.
fn at_once(ground: &Ground, way: Way, size_bytes: u64, count: usize) -> Result<Vec<Sample>> {
    let what = Label::from(&format!("{count} {AT_ONCE}")).ok();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..count).map(|_| scope.spawn(|| upload(ground, way, size_bytes))).collect();
        let ended = threads.into_iter().map(|thread| {
            let sample = thread.join().map_err(|_| anyhow!("the thread of a transfer panicked"))?;
            Ok(Sample { what, ..sample? })
        });
        ended.collect()
    })
}
