//! VM ports whose new connections are left to the VM for some minutes, because two failed within a
//! minute (`struct failures` in accel/flow/types/port.h).

use std::fs;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::topology;

use crate::detach::port_of_network;
use crate::hold::network_with_hold;
use crate::sandbox::{foreground_helper, now_ns, wait_until};

/// Two connections to it fail.
const FAILED: u16 = 5002;
/// One connection to it fails.
const SPARED: u16 = 5003;

pub fn trials() -> Vec<Trial> {
    trials![a_bypassed_vm_port_is_named_by_log_status_stats_and_doctor]
}

fn a_bypassed_vm_port_is_named_by_log_status_stats_and_doctor() -> Result<()> {
    let network = network_with_hold("failed")?;
    let log = format!("/run/{}.log", network.topology.host.name());
    let mut helper = foreground_helper(&log)?;
    let port = port_of_network(&network)?;
    for vm_port in [FAILED, SPARED, FAILED] {
        port.note_failure(vm_port, now_ns()?)?;
    }
    let words = [&format!("port {FAILED} of the VM"), "2 connections failed"];
    wait_until("the log names it", || Ok(fs::read_to_string(&log)?.contains(words[0])))?;
    network.connect_to(FAILED)?.exchange(10_000)?;
    network.connect_to(SPARED)?.exchange(10_000)?;

    let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
    let stats = network.vsnoop(&["stats", topology::PORT, "--json"])?;
    let doctor = network.vsnoop(&["doctor", topology::PORT, "--measure", "0.1", "--json"])?;
    for document in [&status, &stats, &doctor] {
        let left = &document["ports"][0]["bypassed_vm_ports"];
        ensure!(left.as_array().is_some_and(|left| left.len() == 1), "{document}");
        ensure!(left[0]["vm_port"] == FAILED && left[0]["failures"] == 2, "{left}");
        let remaining_ns = left[0]["remaining_ns"].as_u64();
        ensure!(remaining_ns.is_some_and(|ns| ns > 0 && ns <= 300_000_000_000), "{left}");
    }
    ensure!(stats["ports"][0]["bypassed_after_failures"] == 1, "connections: {stats}");
    for command in ["status", "stats"] {
        let text = network.table(command)?;
        for word in words {
            ensure!(text.contains(word), "{command}: {word:?} is not in: {text}");
        }
        ensure!(!text.contains(&format!("port {SPARED}")), "{command}: {text}");
    }
    let text = network.table("doctor")?;
    for word in [words[0], "2 connections"] {
        ensure!(text.contains(word), "doctor: {word:?} is not in: {text}");
    }

    network.detach()?;
    ensure!(helper.wait()?.success(), "the helper failed");
    let text = fs::read_to_string(&log)?;
    let named: Vec<_> = text.lines().filter(|line| line.contains("of the VM")).collect();
    ensure!(named.len() == 1, "not once: {text}");
    for word in words.into_iter().chain(["WARN", topology::PORT]) {
        ensure!(named[0].contains(word), "{word:?} is not in: {text}");
    }
    Ok(())
}
