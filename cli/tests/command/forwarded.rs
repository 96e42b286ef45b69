//! A VM that forwards, as the TTL of what it sends shows, is named by the commands.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::topology;

use crate::hold::network_with_hold;

/// TTL of the VM's packets, as if they had passed two routers.
const TTL: &str = "62";
const VM_PORT: u16 = 5010;

pub fn trials() -> Vec<Trial> {
    trials![a_vm_that_forwards_is_named_by_flows_status_doctor_stats_and_observe]
}

fn a_vm_that_forwards_is_named_by_flows_status_doctor_stats_and_observe() -> Result<()> {
    let network = network_with_hold("hops")?;
    let mut own = network.connect_to(VM_PORT)?;
    own.exchange(10_000)?;
    ensure!(!network.table("status")?.contains("forwarded"), "it forwards nothing yet");
    network.topology.vm.set_sysctl("net.ipv4.ip_default_ttl", TTL)?;
    let mut pair = network.connect_to(VM_PORT + 1)?;
    pair.exchange(10_000)?;

    let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
    let doctor = network.vsnoop(&["doctor", topology::PORT, "--measure", "0.1", "--json"])?;
    for document in [&status, &doctor] {
        let seen = &document["ports"][0]["forwarded"];
        ensure!(seen["connections"] == 1 && seen["path"] == 1, "{document}");
        ensure!(seen["neighbours"] == 0 && seen["late"] == 0, "{document}");
    }
    let stats = network.vsnoop(&["stats", topology::PORT, "--json"])?;
    ensure!(stats["ports"][0]["forwarded"] == 1, "{stats}");
    let flows = network.vsnoop(&["flows", topology::PORT, "--json"])?;
    ensure!(flows.to_string().contains("forwarded-path"), "{flows}");
    ensure!(network.table("status")?.contains("forwarded"), "{}", network.table("status")?);
    let text = network.table("doctor")?;
    for word in ["forwards 1 of 2 connections", "1 by the TTL", "router"] {
        ensure!(text.contains(word), "{word:?} is not in: {text}");
    }

    network.detach()?;
    let arguments = ["observe", topology::PORT, "--for", "2", "--json"];
    let observed = std::thread::scope(|scope| {
        let observing = scope.spawn(|| network.vsnoop(&arguments));
        // Whenever it begins to look: the record may begin with any ACK of the VM.
        while !observing.is_finished() {
            pair.exchange(1_000)?;
        }
        observing.join().map_err(|_| anyhow::anyhow!("observe panicked"))?
    })?;
    ensure!(observed["ports"][0]["forwarded"].as_u64() >= Some(1), "{observed}");
    Ok(())
}
