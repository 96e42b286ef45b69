//! `migrate`: a machine moves between two hosts by QEMU's own live migration, while clients upload
//! to it: without vsnoop, with it at either host or both, and with `vsnoop pause` before.

mod configuration;
mod hosts;
mod measure;
mod plan;
mod plots;
pub mod summary;
mod uploads;
mod watch;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::stage::path::{PathLink, PathOptions};
use vsnoop_testbed::stage::{CONGESTION_CONTROL, StageOptions};
use vsnoop_testbed::vm::Share;
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::{guest, vm};

use self::configuration::{Configuration, SERVICE};
use self::hosts::Hosts;
use self::measure::Migrations;
use self::plan::{CLIENTS, QUOTA_PERCENT, SIZE_BYTES};
use super::definition::{Experiment, Options, Takes};
use super::lab::Lab;
use super::path_check::check_path;
use super::progress::Progress;
use super::rounds::Rounds;
use crate::results::Cell;
use crate::results::record::Record;
use crate::results::report::Words;

const RTT: Duration = Duration::from_millis(20);
const LINK: PathLink = PathLink { rate_mbit: 200, queue_bytes: 1_000_000 };
const ROUNDS: usize = 6;
const QUICK_ROUNDS: usize = 1;

pub const EXPERIMENT: Experiment = Experiment {
    name: "migrate",
    about: "live migration of a VM under uploads, with vsnoop at both hosts, one or none, or the service",
    words: Words {
        title: "Live migration under steady uploads",
        what_to_see: summary::MEANING,
        method: METHOD,
        command: "make lab RUN=migrate",
        tables: summary::table,
        figures: summary::figures,
        goals: None,
        papers: &[],
        plots: plots::draw_all,
    },
    takes: Takes { full_min: 14, quick_min: 2 },
    run,
};

const METHOD: &str = "Two namespaces stand for two hosts: each has a bridge with a persistent tap, \
and both bridges are ports of a third one, to which the path of the clients leads (20 ms, 200 Mb/s \
each way, a queue of 1 MB; a relay in user space). One QEMU guest (1 vCPU, a CPU quota of 20 ms in \
each 100 ms at either host) serves uploads. Four clients upload 1 MB each, one file after the other, \
a connection each (cubic); the guest compares every byte, and a wrong one fails the experiment. \
Meanwhile QEMU migrates the guest to a second QEMU at the other host (QMP `migrate` over a UNIX \
socket); under TCG both map the same memory, because QEMU 7.2 corrupts that of an emulated guest \
when it copies it; 64 MiB of a device that no guest touches are copied at 32 MiB/s, 2 s, as 256 MiB of a \
guest would be at QEMU's default bandwidth. QEMU at the source is killed at once then, as libvirt \
does it. The next migration goes the other way. Configurations take turns in random \
order within each round. `downtime` is the time between QEMU's events STOP at the source and RESUME \
at the target; `stall` is the longest time in which a connection with data outstanding got no \
acknowledgement, of those times that have a moment between STOP and 200 ms after RESUME, from \
captured segments at the clients' device (an upload whose bytes are all acknowledged and that waits \
for the guest's answer has no stall in this sense); `left` are the bytes that vsnoop at the source had \
acknowledged and the guest had not when it ran at the target. `failed` are uploads that ended with an \
error or not within 60 s. `usual` is the median of uploads outside the switch, `across` that of the \
longest upload in each migration that was open during it, failed ones included. `pause` is `vsnoop pause`, repeated up to 5 times while it reports bytes \
on their way, before QEMU gets its command. In `service` one `vsnoop run` has the ports of both hosts and follows both \
QEMUs. `again` is the time from RESUME to the first early ACK \
at the target, by `vsnoop stats` in a loop.";

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let configurations = Configuration::chosen(&options.configurations)?;
    ensure!(
        options.vms.is_empty()
            && options.loads.is_empty()
            && options.path_rtts_ms.is_empty()
            && options.path_loss_percent.is_none()
            && options.path_link.is_none()
            && options.sizes_bytes.is_empty(),
        "of a run's options this experiment has --quick, --rounds and --configuration"
    );
    let own = if options.quick { QUICK_ROUNDS } else { ROUNDS };
    let plan = vec![(SIZE_BYTES, options.rounds.unwrap_or(own))];
    measure(configurations, plan, record)
}

/// Migrations under a service that follows both QEMUs, as the experiment `service` makes them.
pub fn measure_service(migrations: usize, record: &mut Record) -> Result<()> {
    let configurations = Configuration::chosen(&[SERVICE.to_owned()])?;
    measure(configurations, vec![(SIZE_BYTES, migrations)], record)
}

fn measure(
    configurations: Vec<Configuration>,
    plan: Vec<(u64, usize)>,
    record: &mut Record,
) -> Result<()> {
    ensure!(plan[0].1 > 0, "an experiment needs at least one round");
    let rounds = Rounds { configurations, plan, budget: Duration::from_secs(3600) };
    let vsnoop = Vsnoop::find()?;
    let mut lab = Lab::open(guest::Options::default())?;
    lab.describe(&mut record.results.environment);
    record.results.environment.extend([
        ("vsnoop".into(), json!(vsnoop.version()?)),
        ("quota_percent".into(), json!(QUOTA_PERCENT)),
        ("clients".into(), json!(CLIENTS)),
    ]);
    let mut stage = lab.start(StageOptions { vms: 0, tuned: false }, None)?;
    let (image, accelerator) = (lab.image().clone(), lab.accelerator());
    println!("booting a VM (Linux {}, {accelerator})", image.kernel_version);
    let mut hosts = Hosts::build(&mut lab.session, &image, accelerator, &stage, &vsnoop)?;
    vm::pin_self()?;
    hosts.vm().limit(QUOTA_PERCENT)?;
    lab.session.allow_congestion_control(CONGESTION_CONTROL)?;
    stage.set_path(&PathOptions { rtt: RTT, link: Some(LINK), ..PathOptions::default() })?;
    check_path(&stage, RTT)?;
    let mut migrations = Migrations {
        session: &mut lab.session,
        stage: &stage,
        hosts: &mut hosts,
        capture: Capture::start(stage.client())?,
    };
    let mut progress = Progress::new(rounds.count());
    let cell = Cell {
        vms: 1,
        path_rtt_ms: RTT.as_secs_f64() * 1e3,
        path_link: Some(LINK),
        share: Some(Share::Quota { percent: QUOTA_PERCENT }),
        ..Cell::default()
    };
    rounds.measure(cell, record, &mut progress, |trial| {
        let configuration = trial.configuration;
        let sample = migrations.measure(configuration).context(configuration.name)?;
        Ok(vec![sample])
    })
}
