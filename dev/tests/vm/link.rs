//! The frames of a real machine carried to another host by a link, while vsnoop is attached to its
//! tap.
//!
//! ```text
//! [machine]--[tap]--[bridge of the stage]--veth--[bridge of host 0]--+
//!                                                                    | link
//!                           [VM: a namespace]----[bridge of host 1]--+
//! ```

use anyhow::{Context, Result, ensure};
use vsnoop_guest::transfer::Direction::{Download, Upload};
use vsnoop_testbed::client::{self, Outcome};
use vsnoop_testbed::net::{Netns, remove_stale};
use vsnoop_testbed::stage::{BRIDGE, PREFIX_LENGTH, vm_address};

use crate::{Bench, KB, MB, PREFIX, VICTIM};
use vsnoop_testbed::hosts::{Network, Outside, Plan};

/// On the bridge of the stage, host 0's end of it, and the address of host 1's VM among the
/// machines.
const TO_HOST: &str = "vslab-link";
const FROM_STAGE: &str = "stage";
const FAR: usize = 100;
const SIZES: [u64; 3] = [10 * KB, MB, 8 * MB];

pub fn by_udp(bench: &Bench) -> Result<()> {
    carried(bench, "udp")
}

pub fn by_tls(bench: &Bench) -> Result<()> {
    carried(bench, "tls")
}

fn carried(bench: &Bench, transport: &'static str) -> Result<()> {
    remove_stale(PREFIX)?;
    // The stage's own addresses are IPv4: hosts must not answer for them.
    let network = Network::up(Plan { transport, outside: Outside::V6, ..Plan::default() })?;
    let [near, far] = &network.hosts[..] else { unreachable!("two hosts") };
    let stage = bench.stage.host();
    stage.veth_port(BRIDGE, TO_HOST, &near.netns, FROM_STAGE)?;
    near.netns.add_port("br0", FROM_STAGE)?;
    let vm = &far.vms[0];
    vm.add_address("eth0", vm_address(FAR, false).into(), PREFIX_LENGTH)?;
    let before = bench.early_acks(VICTIM)?;
    exact(bench, vm, &SIZES)?;
    far.command(&["set", far.name(), "--compress", "auto"])?;
    near.command(&["set", near.name(), "--compress", "auto"])?;
    exact(bench, vm, &SIZES)?;
    bench.ensure_early_acks(before, "over the link")?;
    for (host, peer) in [(near, "h1"), (far, "h0")] {
        let carried = host.peer(peer)?["received"]["bytes"].as_u64().context("no bytes")?;
        let sent: u64 = 2 * SIZES.iter().sum::<u64>();
        ensure!(
            carried > sent,
            "{peer}: {carried} bytes came by the link of {sent} in each direction"
        );
    }
    // No host is to answer at its address from now on.
    stage.delete(TO_HOST)
}

fn exact(bench: &Bench, from: &Netns, sizes: &[u64]) -> Result<()> {
    for size_bytes in sizes {
        for direction in [Upload, Download] {
            let request = bench.request(VICTIM, direction, *size_bytes);
            let outcome = client::transfer(from, &request)?;
            let is_exact = matches!(outcome, Outcome::Exact(_));
            ensure!(is_exact, "{direction:?} of {size_bytes} bytes over the link: {outcome:?}");
        }
    }
    Ok(())
}
