//! The background processes are killed, stopped, upgraded and taken away while the host holds
//! data: streams end byte-exact, or both ends get an error.
//!
//! A host has one engine and one helper for all its ports. These tests kill them, so they have a
//! host of their own ([`host`]), and run one after the other.

mod downloads;
mod gone;
mod host;
mod killed;
mod memory;
mod moves;
mod other_run;
mod pins;
mod routes;
mod scene;
mod short;
mod split;
mod split_gone;
mod split_moves;
mod stopped;
mod upgrade;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_testbed::part;
use vsnoop_tests::{attached, background, case, pair};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: Vec<_> = [
        killed::trials(),
        downloads::trials(),
        short::trials(),
        split::trials(),
        split_gone::trials(),
        split_moves::trials(),
        stopped::trials(),
        upgrade::trials(),
        gone::trials(),
        memory::trials(),
        other_run::trials(),
        routes::trials(),
        moves::trials(),
        pins::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let trials = part::of_this_run(trials);
    let obstacle = if arguments.list { Some("only listed".into()) } else { host::obstacle() };
    if let Some(reason) = obstacle {
        let ignored =
            |trial: Trial| trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true);
        let trials = trials.into_iter().map(ignored).collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    match host::enter() {
        Ok(None) => libtest_mimic::run(&arguments, trials).exit_code(),
        Ok(Some(code)) => code,
        Err(error) => {
            eprintln!("no host of their own for the tests: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A test of this name.
fn trial(name: &str, test: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || test().map_err(|error| Failed::from(format!("{error:#}"))))
}
