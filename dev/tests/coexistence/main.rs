//! vsnoop beside other software at the same tap or bridge: the software is the real one, as Debian
//! packages it, in namespaces of the test's own.
//!
//! Most tests upload over one connection ([`scene`]) to a VM that stands still, so that only vsnoop
//! can acknowledge, and look at what the other software passed, dropped and counted.
//!
//! A test whose software is not installed, or needs what the kernel does not have, is listed as
//! ignored, with the reason in its kind. `kernels` runs those of them under a kernel of Debian for
//! which many a kernel has no modules.

mod bandwidth;
mod ebtables;
mod libvirt;
mod nftables;
mod open_vswitch;
mod proxmox;
mod scene;
mod tc_ingress;

use anyhow::{Result, anyhow};
use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_testbed::net::{Net, Netns, remove_stale};
use vsnoop_tests::PREFIX;

/// Most of a test's time is spent waiting for retransmissions.
const THREADS: usize = 4;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let groups: [(Vec<Trial>, Probe); 9] = [
        (nftables::trials(), nftables::probe),
        (ebtables::trials(), ebtables::probe),
        (proxmox::trials(), proxmox::probe),
        (open_vswitch::trials(), open_vswitch::probe),
        (open_vswitch::trials_with_kernel(), open_vswitch::probe_with_kernel),
        (bandwidth::trials(), bandwidth::probe),
        (bandwidth::trials_in_full(), bandwidth::probe_in_full),
        (tc_ingress::trials(), tc_ingress::probe),
        (libvirt::trials(), libvirt::probe),
    ];
    let is_root = nix::unistd::geteuid().is_root();
    if is_root && let Err(error) = remove_stale(PREFIX) {
        eprintln!("left-overs of an earlier run stay: {error:#}");
    }
    let mut trials = Vec::new();
    for (group, probe) in groups {
        let reason = match is_root {
            true => namespace().and_then(|netns| probe(&netns)).err(),
            false => Some(anyhow!("network namespaces need root")),
        };
        let reason = reason.map(|error| format!("skipped: {error:#}"));
        trials.extend(group.into_iter().map(|trial| match &reason {
            Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
            None => trial,
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Fails, with the reason, where the software cannot run; it may change this namespace.
type Probe = fn(&Netns) -> Result<()>;

fn namespace() -> Result<Netns> {
    Net::new(PREFIX).host("probe")
}

/// A test of this name.
fn trial(name: impl Into<String>, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, || test().map_err(|error| Failed::from(format!("{error:#}"))))
}
