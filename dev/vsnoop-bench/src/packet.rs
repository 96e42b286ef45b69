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
//!   divided by the data, in units of one MTU's payload;
//! - the plain hand-over: a program that clones each MTU-sized segment to the tap
//!   and drops it, in place of vsnoop.
//!
//! Ratios are medians over those of the rounds, so that they hold on any machine.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_bpf::{EmptyProgram, Hook, PlainHandOver, Port, ProgramInfo, account_run_time};
use vsnoop_lab::results::Figure;
use vsnoop_testbed::bulk::bulk;
use vsnoop_testbed::net::checked;
use vsnoop_testbed::topology::{Family, PORT, Topology};
use vsnoop_testbed::{interrupt, vsnoop::Vsnoop};

use crate::figures::{figure, median, median_ratio, say};
use crate::stage::{self, SHAPES, VM_CORE};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);
/// Payload of an Ethernet frame of 1500 bytes with timestamps.
const MTU_PAYLOAD_BYTES: f64 = 1448.0;

/// In a round of early ACKs nearly all data are acknowledged so, 0 to 1.
const LEAST_EARLY_SHARE: f64 = 0.75;

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

/// Measurements of all rounds, in their order.
#[derive(Default)]
struct Rounds {
    pass: Vec<f64>,
    from_vm: Vec<f64>,
    from_vm_pass: Vec<f64>,
    /// In the paused rounds, and in those that acknowledge early.
    empty: Vec<f64>,
    empty_active: Vec<f64>,
    early_gso: Vec<f64>,
    empty_gso: Vec<f64>,
    early_mtu: Vec<f64>,
    hand_over: Vec<f64>,
}

impl Rounds {
    fn note(&mut self, paused: &Round, active: &Round) {
        self.pass.push(paused.to_vm_ns);
        self.from_vm_pass.push(paused.from_vm_ns);
        self.empty.push(paused.empty_ns);
        self.from_vm.push(active.from_vm_ns);
        self.empty_active.push(active.empty_ns);
    }

    fn figures(self) -> Vec<Figure> {
        let ns = |name, values: &[f64]| figure(name, median(values.to_vec()), "ns", "lower");
        let ratio = |name, values: &[f64], to: &[f64]| {
            figure(name, median_ratio(values, to), "ratio", "lower")
        };
        let mut figures = vec![
            ns("to_vm_pass_ns", &self.pass),
            ns("empty_program_ns", &self.empty),
            ns("from_vm_ns", &self.from_vm),
            ns("early_ack_ns_per_mtu", &self.early_gso),
            ns("early_ack_ns_per_mtu_of_mtu_segments", &self.early_mtu),
            ratio("to_vm_pass_over_empty", &self.pass, &self.empty),
            ratio("from_vm_pass_over_empty", &self.from_vm_pass, &self.empty),
            ratio("from_vm_over_empty", &self.from_vm, &self.empty_active),
            ratio("early_ack_gso_ns_per_mtu_over_empty", &self.early_gso, &self.empty_gso),
            ratio("early_ack_mtu_over_handover", &self.early_mtu, &self.hand_over),
        ];
        // A machine so busy that nothing could be acknowledged early.
        figures.retain(|figure| figure.value.is_finite());
        figures
    }
}

pub fn measure() -> Result<Vec<Figure>> {
    let _accounting = account_run_time()?;
    let mut rounds = Rounds::default();
    for (name, from_client) in SHAPES {
        let topology = stage::build(from_client)?;
        // Whatever the hand-over is compared with has the same.
        let queueing = ["qdisc", "replace", "dev", PORT, "root", "noqueue"];
        checked("tc", ["-n", topology.host.name()].into_iter().chain(queueing))?;
        let vsnoop = Vsnoop::find()?.in_netns(topology.host.name());
        for number in 1..=ROUNDS {
            interrupt::check()?;
            let paused = round(&topology, &vsnoop, true)?;
            let active = round(&topology, &vsnoop, false)?;
            say(&format!(
                "{name} round {number} of {ROUNDS}: pass {:.0} ns (an empty program {:.0} ns), \
                 packet of the VM {:.0} ns, early ACK {:.0} ns per MTU of data",
                paused.to_vm_ns, paused.empty_ns, active.from_vm_ns, active.early_ns_per_mtu
            ));
            rounds.note(&paused, &active);
            if active.early_share < LEAST_EARLY_SHARE {
                let percent = active.early_share * 100.0;
                say(&format!("only {percent:.0} % were acknowledged early: not counted"));
            } else if name == "gso" {
                rounds.early_gso.push(active.early_ns_per_mtu);
                rounds.empty_gso.push(active.empty_ns);
            } else {
                rounds.early_mtu.push(active.early_ns_per_mtu);
                rounds.hand_over.push(hand_over(&topology)?);
            }
        }
    }
    Ok(rounds.figures())
}

/// Nanoseconds of the plain hand-over of a segment.
fn hand_over(topology: &Topology) -> Result<f64> {
    let program = topology.host.run(|| {
        let ifindex = nix::net::if_::if_nametoindex(PORT).context("index of the port")?;
        Ok(PlainHandOver::attach(ifindex)?)
    })?;
    bulk(topology, Family::V4, ROUND, Some(VM_CORE)).context("one bulk flow")?;
    let info = program.info()?;
    // The run for the clone is within that for its segment, and accounted to both.
    Ok(info.run_time_ns as f64 / (info.run_count / 2).max(1) as f64)
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
