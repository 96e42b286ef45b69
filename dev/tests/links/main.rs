//! Links between hosts: `vsnoop link` as an operator runs it, hosts and VMs as network namespaces.
//!
//! Every transfer is verified byte by byte, both ways at once. A test that cannot run on this
//! machine is listed as ignored, with the reason in its kind.

mod batches;
mod bombs;
mod bridges;
mod certificates;
mod descriptors;
mod direct;
mod divert;
mod expiry;
mod floods;
mod hello;
mod hostile;
mod interfaces;
mod loops;
mod lying_hub;
mod marks;
mod membership;
mod memory;
mod names;
mod paths;
mod peers;
mod privileges;
mod relay;
mod reload;
mod session;
mod slow_peers;
mod stuck_log;
mod tenants;
mod threads;
mod transfer;
mod transports;
mod unknown_sources;
mod vlans;

use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_testbed::net::remove_stale;
use vsnoop_testbed::part;
use vsnoop_testbed::raw_vm;
use vsnoop_tests::PREFIX;

/// Each of them moves bytes as fast as it can.
const THREADS: usize = 2;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let mut trials: Vec<Trial> = [
        transports::trials(),
        peers::trials(),
        divert::trials(),
        paths::trials(),
        interfaces::trials(),
        bridges::trials(),
        vlans::trials(),
        certificates::trials(),
        expiry::trials(),
        hostile::trials(),
        batches::trials(),
        bombs::trials(),
        unknown_sources::trials(),
        privileges::trials(),
        reload::trials(),
        slow_peers::trials(),
        stuck_log::trials(),
        tenants::trials(),
        floods::trials(),
        loops::trials(),
        membership::trials(),
        memory::trials(),
        marks::trials(),
        names::trials(),
        relay::trials(),
        threads::trials(),
        descriptors::trials(),
        direct::trials(),
        lying_hub::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    trials = part::of_this_run(trials);
    if let Some(reason) = nothing_can_run() {
        trials = trials
            .into_iter()
            .map(|trial| trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true))
            .collect();
    } else if let Err(error) = remove_stale(PREFIX) {
        eprintln!("left-overs of an earlier run stay: {error:#}");
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn nothing_can_run() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("this kernel has no /dev/net/tun".to_owned());
    }
    None
}

/// A test of this name.
fn trial(
    name: impl Into<String>,
    test: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    Trial::test(name, || test().map_err(|error| Failed::from(format!("{error:#}"))))
}
