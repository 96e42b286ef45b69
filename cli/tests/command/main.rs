//! The `vsnoop` command against real taps: bad input, round trips, the helper, the panic switch.
//!
//! The whole test runs in a mount namespace of its own, with its own BPF file system and its own
//! /run, so that it neither sees nor touches what else is attached on the machine (`off --all` is
//! part of it), and each test has network namespaces of its own. Tests run one after the other: the
//! panic switch takes everything off. A test that cannot run here is listed as ignored, with the
//! reason.

/// Tests by the names of their functions.
macro_rules! trials {
    ($($test:ident),* $(,)?) => { vec![$(crate::trial(stringify!($test), $test)),*] };
}

mod attack;
mod attack_time;
mod bad_input;
mod chosen;
mod configured;
mod damaged;
mod detach;
mod detached_by_operator;
mod doctor;
mod downloads;
mod failures;
mod forwarded;
mod groups;
mod held;
mod helper;
mod hold;
mod holders;
mod incast;
mod install;
mod interrupted;
mod link;
mod locks;
mod metrics;
mod migration;
mod monitors;
mod off;
mod packages;
mod priority;
mod privileges;
mod prometheus;
mod records;
mod reload;
mod round_trip;
mod sandbox;
mod service;
mod spent;
mod split;
mod surroundings;
mod top;

use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_testbed::part;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    // The service leaves taps alone whose holder is no VM; the holder is this process.
    if let Err(error) = nix::sys::prctl::set_name(c"qemu-command") {
        eprintln!("this process keeps its name: {error}");
    }
    let unusable = if arguments.list { None } else { sandbox::enter().err() };
    let trials: Vec<Trial> = [
        attack::trials(),
        attack_time::trials(),
        bad_input::trials(),
        chosen::trials(),
        configured::trials(),
        damaged::trials(),
        round_trip::trials(),
        detach::trials(),
        doctor::trials(),
        downloads::trials(),
        off::trials(),
        groups::trials(),
        held::trials(),
        failures::trials(),
        forwarded::trials(),
        helper::trials(),
        hold::trials(),
        holders::trials(),
        incast::trials(),
        install::trials(),
        interrupted::trials(),
        detached_by_operator::trials(),
        link::trials(),
        locks::trials(),
        metrics::trials(),
        surroundings::trials(),
        top::trials(),
        packages::trials(),
        priority::trials(),
        privileges::trials(),
        prometheus::trials(),
        records::trials(),
        reload::trials(),
        service::trials(),
        split::trials(),
        migration::trials(),
        monitors::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let trials = part::of_this_run(trials)
        .into_iter()
        .map(|trial| match &unusable {
            Some(error) => skipped(trial, &format!("{error:#}")),
            None => trial,
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn skipped(trial: Trial, reason: &str) -> Trial {
    trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true)
}

/// A test of this name. After a failure all attachments are removed: the next test would find them,
/// and the helper would detach them during it.
fn trial(name: &str, test: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    Trial::test(name, || {
        test().map_err(|error| {
            let text = match sandbox::vsnoop(["off", "--all"]).and_then(sandbox::Ran::ok) {
                Ok(_) => format!("{error:#}"),
                Err(left) => format!("{error:#}; and what it left stays: {left:#}"),
            };
            Failed::from(text)
        })
    })
}
