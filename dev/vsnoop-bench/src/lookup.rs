//! The cost of a look-up: the `to_vm` hook passes an ACK of one of N known
//! flows, picked at random.
//!
//! One segment of a flow at a time, each by a system call of its own: with many
//! flows neither the record nor its bucket is in any cache, and the memory is
//! what is measured. In trains, as segments arrive that a window let go: the
//! first of them is cold, the rest shows the table.
//!
//! The memory of a record in the kernel's table is the growth of the kernel's own counters while
//! the records come.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use vsnoop_bpf::types::{flow, flow_mode, port_run};
use vsnoop_bpf::{AttachSpec, Hook, Port, TableLimits, account_run_time};
use vsnoop_lab::results::Figure;
use vsnoop_packet::builder::TcpFrame;
use vsnoop_testbed::net::{Net, TapOptions};

use crate::figures::{figure, median, say};
use crate::flows;
use crate::idle::kernel_bytes;
use crate::stage::PREFIX;

const MANY: u32 = 100_000;
const ROUNDS: usize = 7;
const RUNS: u32 = 30_000;
/// Segments of a flow that come together.
const TRAIN: u32 = 16;
const TAP: &str = "vsb-lookup";

pub fn measure() -> Result<Vec<Figure>> {
    let _accounting = account_run_time()?;
    let netns = Net::new(PREFIX).host("lookup")?;
    let _tap = netns.tap(TAP, &TapOptions::default())?;
    netns.up(TAP)?;
    netns.run(|| {
        let ifindex = nix::net::if_::if_nametoindex(TAP).context("index of the tap")?;
        let inode = std::fs::metadata("/proc/thread-self/ns/net").context("this namespace")?.ino();
        let mut spec = AttachSpec::new(ifindex, TAP, inode);
        spec.policy.run = port_run::PORT_PAUSED;
        spec.limits = TableLimits { max_flows: MANY + MANY / 4, ..TableLimits::default() };
        let port = Port::attach(&spec)?;
        let figures = figures(&port);
        port.detach()?;
        figures
    })
}

fn figures(port: &Port) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    port.insert_flow(&flows::key(0), &record())?;
    let one = [among(port, 1, 1)?, among(port, 1, TRAIN)?];
    let before = kernel_bytes()?;
    for n in 1..MANY {
        port.insert_flow(&flows::key(n), &record())?;
    }
    let element = kernel_bytes()?.saturating_sub(before) as f64 / f64::from(MANY - 1);
    let many = [among(port, MANY, 1)?, among(port, MANY, TRAIN)?];

    for (at, suffix) in ["".to_owned(), format!("_in_trains_of_{TRAIN}")].iter().enumerate() {
        say(&format!(
            "a pass among {MANY} flows{suffix}: {:.0} ns, with 1 flow {:.0} ns",
            many[at], one[at]
        ));
        figures.push(figure(&format!("lookup_ns_1_flow{suffix}"), one[at], "ns", "lower"));
        let name = format!("lookup_ns_{MANY}_flows{suffix}");
        figures.push(figure(&name, many[at], "ns", "lower"));
        let name = format!("lookup_{MANY}_over_1{suffix}");
        figures.push(figure(&name, many[at] / one[at], "ratio", "lower"));
    }
    say(&format!("a record takes {element:.0} bytes of the kernel's memory"));
    figures.push(figure("flow_element_bytes", element, "bytes", "lower"));
    Ok(figures)
}

/// Nanoseconds of a pass with `flows` flows on record, `train` segments at a time.
fn among(port: &Port, flows: u32, train: u32) -> Result<f64> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut per_run = Vec::new();
    let hook = port.open_hook(Hook::ToVm)?;
    for _ in 0..ROUNDS {
        let before = cost(port)?;
        for _ in 0..RUNS {
            let n = random.u32(0..flows);
            let (verdict, _) = hook.run(&segment(n), train)?;
            anyhow::ensure!(verdict == -1, "the hook did not pass a segment of a paused port");
        }
        let after = cost(port)?;
        per_run.push((after.1 - before.1) as f64 / (after.0 - before.0) as f64);
    }
    Ok(median(per_run))
}

fn cost(port: &Port) -> Result<(u64, u64)> {
    let programs = port.programs()?;
    let to_vm = programs.iter().find(|p| p.name == "to_vm").context("no program to_vm")?;
    Ok((to_vm.run_count, to_vm.run_time_ns))
}

/// A flow that has just begun at sequence number 1000.
fn record() -> flow {
    let at = vsnoop_bpf::types::seq { v: 1000 };
    let edge = vsnoop_bpf::types::seq { v: 1_001_000 };
    flow {
        next_seq: at,
        vm_seq: at,
        high_seq: at,
        right_edge: edge,
        adv_edge: edge,
        mode: flow_mode::FLOW_ACTIVE as u8,
        mss: 1448,
        ..Default::default()
    }
}

fn segment(n: u32) -> Vec<u8> {
    TcpFrame { sequence: 1000, window: 502, ..flows::of_sender(n) }.build(&[])
}
