//! Nanoseconds per packet under real traffic, by the kernel's own accounting
//! (run time and run count of each program).
//!
//! - passing: a bulk flow in a paused port, where every segment is parsed,
//!   looked up, decided about and passed;
//! - a program that returns at once, behind `from_vm`: what the accounting
//!   charges for being called, under the same traffic;
//! - early ACKs: a bulk flow of which every segment is kept and acknowledged
//!   early (with a later one, or by an ACK of its own), the whole time of the hook
//!   (with the copy, and the hand-over to the tap of what is acknowledged at once)
//!   divided by the data, in units of one MTU's payload.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_bpf::{EmptyProgram, Hook, Port, ProgramInfo, account_run_time};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::bulk::bulk;
use vsnoop_testbed::topology::{Family, PORT, Topology};
use vsnoop_testbed::{interrupt, vsnoop::Vsnoop};

use crate::figures::{figure, median, say};
use crate::stage::{self, SHAPES, VM_CORE};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);
/// Payload of an Ethernet frame of 1500 bytes with timestamps.
const MTU_PAYLOAD_BYTES: f64 = 1448.0;

/// The cost of the hooks in one round.
struct Round {
    to_vm_ns: f64,
    from_vm_ns: f64,
    /// The cost of a program that returns at once.
    empty_ns: f64,
    early_ns_per_mtu: f64,
    /// The share of all bytes to the VM that were acknowledged early, 0 to 1.
    early_share: f64,
}

pub fn measure() -> Result<Vec<Figure>> {
    let _accounting = account_run_time()?;
    let (mut pass, mut from_vm, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    let (mut early_gso, mut early_mtu) = (Vec::new(), Vec::new());
    for (name, from_client) in SHAPES {
        let topology = stage::build(from_client)?;
        let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
        for number in 1..=ROUNDS {
            interrupt::check()?;
            let paused = round(&topology, &vsnoop, true)?;
            let active = round(&topology, &vsnoop, false)?;
            anyhow::ensure!(
                active.early_share > 0.75,
                "only {:.0} % of the data were acknowledged early in a round that measures it",
                active.early_share * 100.0
            );
            pass.push(paused.to_vm_ns);
            from_vm.push(active.from_vm_ns);
            empty.push(paused.empty_ns);
            if name == "gso" { &mut early_gso } else { &mut early_mtu }
                .push(active.early_ns_per_mtu);
            say(&format!(
                "{name} round {number} of {ROUNDS}: pass {:.0} ns (an empty program {:.0} ns), \
                 packet of the VM {:.0} ns, early ACK {:.0} ns per MTU of data",
                paused.to_vm_ns, paused.empty_ns, active.from_vm_ns, active.early_ns_per_mtu
            ));
        }
    }
    Ok(vec![
        figure("to_vm_pass_ns", median(pass), "ns", "lower"),
        figure("empty_program_ns", median(empty), "ns", "lower"),
        figure("from_vm_ns", median(from_vm), "ns", "lower"),
        figure("early_ack_ns_per_mtu", median(early_gso), "ns", "lower"),
        figure("early_ack_ns_per_mtu_of_mtu_segments", median(early_mtu), "ns", "lower"),
    ])
}

fn round(topology: &Topology, vsnoop: &Vsnoop, is_paused: bool) -> Result<Round> {
    // Never passive: every segment is kept.
    vsnoop.attach_with(PORT, &["--no-passive"])?;
    let measured = measured(topology, vsnoop, is_paused);
    vsnoop.detach(PORT)?;
    measured
}

fn measured(topology: &Topology, vsnoop: &Vsnoop, is_paused: bool) -> Result<Round> {
    if is_paused {
        vsnoop.pause(PORT)?;
    }
    // On the way from the VM: one on the way to it would have the helper pause the port.
    let (port, empty) = topology.host.run(|| {
        let ifindex = nix::net::if_::if_nametoindex(PORT).context("index of the port")?;
        let netns = std::fs::metadata("/proc/thread-self/ns/net").context("this namespace")?.ino();
        Ok((Port::open(netns, ifindex)?, EmptyProgram::attach(ifindex, Hook::FromVm)?))
    })?;
    bulk(topology, Family::V4, ROUND, Some(VM_CORE)).context("one bulk flow")?;
    let (programs, stats, empty) = (port.programs()?, port.stats()?, empty.info()?);
    let find = |name: &str| {
        let found = programs.iter().find(|p| p.name == name);
        found.with_context(|| format!("no program {name} on {PORT}"))
    };
    let (to_vm, from_vm) = (find("to_vm")?, find("from_vm")?);
    let per_run = |p: &ProgramInfo| p.run_time_ns as f64 / p.run_count.max(1) as f64;
    // The host's own ACKs come in by the same hook, which lets them pass at once.
    let replies = stats.early_acks + stats.reacked + stats.resets_sent;
    Ok(Round {
        to_vm_ns: per_run(to_vm),
        from_vm_ns: (from_vm.run_time_ns as f64 - replies as f64 * per_run(&empty))
            / from_vm.run_count.saturating_sub(replies).max(1) as f64,
        empty_ns: per_run(&empty),
        early_ns_per_mtu: to_vm.run_time_ns as f64 / (stats.early_bytes as f64 / MTU_PAYLOAD_BYTES),
        early_share: stats.early_bytes as f64 / stats.to_vm_bytes as f64,
    })
}
