//! `migrate`: a machine moves between two hosts by QEMU's own live migration, while clients upload
//! to it: without vsnoop, with it at either host or both, and with `vsnoop pause` before.

mod configuration;
mod hosts;
mod measure;
mod uploads;
mod watch;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::place::Place;
use vsnoop_testbed::session::PREFIX;
use vsnoop_testbed::stage::path::PathOptions;
use vsnoop_testbed::stage::{CONGESTION_CONTROL, StageOptions};
use vsnoop_testbed::vm::Share;
use vsnoop_testbed::vsnoop::Vsnoop;
use vsnoop_testbed::{guest, vm};

use self::configuration::Configuration;
use self::hosts::Hosts;
use self::measure::{Migrations, Settings};
use super::declared::Task;
use super::lab::{Lab, guest_image};
use super::path_check::check_path;
use super::progress::Progress;

pub fn run(task: Task) -> Result<()> {
    let plan = task.plan()?;
    let record = task.record;
    let settings: Settings = plan.settings()?;
    let machines = plan.machines();
    let machine = machines.first().context("a plan without machines")?;
    let Share::Quota { percent: quota_percent } = machine.share else {
        bail!("the machine has a quota at both hosts, and no {}", machine.share);
    };
    let (cell, part) = machine.cells.first().context("a plan without cells")?;
    let rounds = part.rounds_of(Configuration::find)?;
    // Its service is not that of the host, nor of a run beside this one.
    let place = Place::new(PREFIX)?;
    let vsnoop = Vsnoop::find()?.in_place(&place);
    let mut lab = Lab::open(guest_image(guest::Options::default())?)?;
    lab.describe(&mut record.results.environment);
    record.results.environment.extend([
        ("vsnoop".into(), json!(vsnoop.version()?)),
        ("quota_percent".into(), json!(quota_percent)),
        ("clients".into(), json!(settings.clients)),
    ]);
    let mut stage = lab.start(StageOptions { vms: 0, tuned: false }, None)?;
    let (image, accelerator) = (lab.image().clone(), lab.accelerator());
    println!("booting a VM (Linux {}, {accelerator})", image.kernel_version);
    let mut hosts = Hosts::build(&mut lab.session, &image, accelerator, &stage, &vsnoop)?;
    vm::pin_self()?;
    hosts.vm().limit(quota_percent)?;
    lab.session.allow_congestion_control(CONGESTION_CONTROL)?;
    let rtt = Duration::from_secs_f64(cell.path_rtt_ms / 1e3);
    stage.set_path(&PathOptions { rtt, link: cell.path_link, ..PathOptions::default() })?;
    check_path(&stage, rtt)?;
    let mut migrations = Migrations {
        session: &mut lab.session,
        stage: &stage,
        hosts: &mut hosts,
        capture: Capture::start(stage.client())?,
        settings,
        quota_percent,
    };
    let mut progress = Progress::new(rounds.count());
    rounds.measure(*cell, record, &mut progress, |trial| {
        let sample = migrations.measure(&trial).context(trial.configuration.name)?;
        Ok(vec![sample])
    })
}
