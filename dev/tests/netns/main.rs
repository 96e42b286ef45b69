//! The BPF programs on a real tap, with a relay and a namespace in place of a VM.
//!
//! Every test builds its own network, attaches with the `vsnoop` command, sends streams whose every
//! byte is verified, both ways at once, and detaches; [`case`] does that, the other modules say
//! with which features and faults. With `VSNOOP_NETNS_DETACHED=1` nothing is attached: the same
//! streams must then pass as well, or the network itself is at fault.
//!
//! A test that cannot run on this machine is listed as ignored, with the reason in its kind.

mod accept_queue;
mod backlog;
mod bare;
mod divert;
mod downloads;
mod fan_in;
mod features;
mod forwarding;
mod guest;
mod hold;
mod incast;
mod lifecycle;
mod matrix;
mod network;
mod next_hop;
mod probe;
mod queues;
mod shrinking;
mod small_window;

use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_testbed::net::remove_stale;
use vsnoop_testbed::topology::Family;
use vsnoop_tests::{PREFIX, attached, case, pair};

/// By name, for tests of which there is one each.
const FAMILIES: [(&str, &[Family]); 2] = [("ipv4", &[Family::V4]), ("ipv6", &[Family::V6])];
/// Most of a stream's time is spent waiting for a frozen VM.
const THREADS: usize = 4;

fn main() {
    // Before all else: this program may have been started to be one.
    if let Err(error) = divert::serve() {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let mut trials: Vec<Trial> = [
        accept_queue::trials(),
        bare::trials(),
        divert::trials(),
        downloads::trials(),
        fan_in::trials(),
        matrix::trials(),
        features::trials(),
        forwarding::trials(),
        network::trials(),
        guest::trials(),
        hold::trials(),
        incast::trials(),
        lifecycle::trials(),
        next_hop::trials(),
        queues::trials(),
        shrinking::trials(),
        small_window::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Some(reason) = probe::nothing_can_run() {
        trials = trials
            .into_iter()
            .map(|trial| trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true))
            .collect();
    } else if let Err(error) = remove_stale(PREFIX) {
        eprintln!("left-overs of an earlier run stay: {error:#}");
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// A test of this name.
fn trial(
    name: impl Into<String>,
    test: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    Trial::test(name, || test().map_err(|error| Failed::from(format!("{error:#}"))))
}
