//! Several pairs of threads carry frames (`threads` in `[link]`), each those of its own peers.

use std::fs;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::hosts::{Host, Network, Plan, inner_v4};
use vsnoop_testbed::wait::wait_until;

use crate::raw_vm::PATIENCE;
use crate::transports::{EXCHANGED_BYTES, exchange};
use crate::{relay, trial};

/// One for each peer of a host.
const PAIRS: usize = 3;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        trials.push(trial(
            format!("threads::{transport}::each_pair_carries_for_its_own_peers"),
            move || each_carries(transport),
        ));
        trials.push(trial(
            format!("threads::{transport}::a_hub_relays_between_peers_of_two_pairs"),
            move || relay::comes_back(Plan { link: "threads = 2\n", ..relay::plan(transport) }),
        ));
    }
    trials
}

/// All hosts exchange bytes with each other. Each receiving thread of a host has written what came
/// from one of the three others, and no VM misses a broadcast (ARP).
fn each_carries(transport: &'static str) -> Result<()> {
    let link = "threads = 3\n";
    let plan = Plan { hosts: 1 + PAIRS, vms_per_host: PAIRS, transport, link, ..Plan::default() };
    let network = Network::up(plan.clone())?;
    ensure!(network.hosts[0].status()?["cpu"]["threads"] == PAIRS, "another number of threads");
    exchange(&network, &plan)?;
    for host in &network.hosts {
        let written = written_by_receivers(host)?;
        ensure!(written.len() == PAIRS, "{written:?}");
        let is_idle = |bytes: &u64| *bytes < EXCHANGED_BYTES;
        ensure!(
            !written.iter().any(is_idle),
            "a pair of {} carries nothing: {written:?}",
            host.name()
        );
    }
    // A host that has not spoken yet is found by a broadcast, whatever pair reads the request.
    let from = &network.hosts[0].vms[0];
    for host in 1..=PAIRS {
        let answers = || Ok(from.ping(inner_v4(host, 0), 1).is_ok());
        wait_until("a VM of another host answers", PATIENCE, answers)?;
    }
    Ok(())
}

/// Bytes that each thread that receives has written, to ports above all.
fn written_by_receivers(host: &Host) -> Result<Vec<u64>> {
    let pid = host.link.as_ref().context("no link runs")?.id();
    let mut written = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("listing threads")? {
        let task = task.context("listing threads")?.path();
        let read = |file| fs::read_to_string(task.join(file)).context("asking about a thread");
        if read("comm")?.trim() == "ingress" {
            let io = read("io")?;
            let bytes = io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok());
            written.push(bytes.context("no wchar")?);
        }
    }
    Ok(written)
}
