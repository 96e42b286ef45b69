//! The VM's window while the host holds data: tiny, huge, closed and opened again, taken back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use socket2::SockRef;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::{Direction, Freeze};
use vsnoop_testbed::stream::{SocketOptions, StreamPlan};
use vsnoop_testbed::topology::{Family, Topology, TopologyOptions};
use vsnoop_testbed::wait::wait_until;

use super::SIZE;
use crate::attached;
use crate::case::Case;
use crate::pair::Pair;
use crate::trial;

/// Until the VM has closed its window.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZES: [(&str, Offloads); 2] =
    [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (size, offloads) in SIZES {
        let test = |name: &str, test: fn(Offloads) -> Result<()>| {
            trial(format!("hold::window::{name}_{size}"), move || test(offloads))
        };
        trials.extend([
            test("tiny_receive_buffer", tiny),
            test("huge_receive_buffer", huge),
            test("closed_window_opens_again", closed),
            test("probes_of_a_sender_are_answered_while_the_hold_is_full", full),
            test("window_that_the_vm_takes_back", shrunk),
        ]);
    }
    trials
}

fn case(offloads: Offloads) -> Case {
    let base = Case::default();
    Case {
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        hold: Some(SIZE),
        ..base
    }
}

fn tiny(offloads: Offloads) -> Result<()> {
    let case = case(offloads);
    let socket = SocketOptions { vm_receive_buffer_bytes: Some(4096), ..SocketOptions::default() };
    let plan = StreamPlan { socket, ..case.plan.clone() };
    Case { plan, families: &[Family::V4, Family::V6], ..case }
        .run_and(|_, attached, _| attached.ensure_held())
}

/// Room for more than the host holds, of which the VM says only 64 KB before its first answer.
fn huge(offloads: Offloads) -> Result<()> {
    const BYTES: u64 = 4_000_000;
    let sysctls = vec![
        ("net.ipv4.tcp_rmem", "4096 16777216 33554432"),
        ("net.ipv4.tcp_wmem", "4096 16777216 33554432"),
    ];
    let plan = StreamPlan { to_vm_bytes: 20_000_000, ..Case::default().plan };
    let case = Case { plan, sysctls, ..case(offloads) };
    if attached::is_wanted() {
        let topology = case.build()?;
        let mut attached = case.attach(&topology)?;
        let mut pair = Pair::connect(&topology, Family::V4)?;
        topology.guest().set_freeze(Freeze::Now);
        pair.client.send(BYTES).with_context(|| attached.describe())?;
        pair.client.until_acknowledged().with_context(|| attached.describe())?;
        attached.ensure_held()?;
        topology.guest().set_freeze(Freeze::Never);
        pair.vm.receive(BYTES).with_context(|| attached.describe())?;
        attached.until_memory_is_free()?;
        attached.ensure_no_reset()?;
        attached.detach()?;
    }
    case.run()
}

/// The VM's application does not read; the sender is done long before.
fn closed(offloads: Offloads) -> Result<()> {
    const BYTES: u64 = 2_000_000;
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case(offloads) };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect_with(&topology, Family::V4, Some(16 * 1024))?;
    // A VM that is never late would be left alone.
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    topology.guest().set_freeze(Freeze::Never);
    until_window_is_closed(&topology)?;
    // Only the engine has a reason to send a segment: it asks whether the window has opened.
    let frames = || topology.guest().counters(Direction::LeftToRight).delivered;
    let before = frames();
    attached.wait_until("the VM was probed", || Ok(frames() >= before + 3))?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > BYTES / 2, "only {held} bytes are held, and the VM reads nothing");
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

fn until_window_is_closed(topology: &Topology) -> Result<()> {
    wait_until("the VM has closed its window", PATIENCE, || {
        let (to, from) = ("TCPToZeroWindowAdv", "TCPFromZeroWindowAdv");
        Ok(topology.vm.counter("TcpExt", to)? > topology.vm.counter("TcpExt", from)?)
    })
}

/// More than the hold can take: the sender's window closes, and its probes are answered.
fn full(offloads: Offloads) -> Result<()> {
    const BYTES: u64 = 3_000_000;
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], hold: Some("1M"), ..case(offloads) };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    topology.guest().set_freeze(Freeze::Now);
    let mut sender = pair.client.twin()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || sender.send(BYTES));
        let probes = || topology.client.counter("TcpExt", "TCPWinProbe");
        attached.wait_until("the sender has probed a closed window", || Ok(probes()? >= 3))?;
        let used = attached.hold("used_bytes")?;
        ensure!(used > 1 << 19, "the window closed at {used} bytes\n{}", attached.describe());
        ensure!(!sending.is_finished(), "all was sent: nothing was tested");
        topology.guest().set_freeze(Freeze::Never);
        pair.vm.receive(BYTES).with_context(|| attached.describe())?;
        match sending.join() {
            Ok(sent) => sent,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// A VM that takes back what it had offered (`tcp_shrink_window`) gets no byte beyond its new edge.
fn shrunk(offloads: Offloads) -> Result<()> {
    const BYTES: u64 = 2_000_000;
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case(offloads) };
    let topology = case.build()?;
    topology.vm.set_sysctl("net.ipv4.tcp_shrink_window", "1")?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect_with(&topology, Family::V4, Some(512 * 1024))?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    // It does not read, and has memory for less than the window it has just offered.
    SockRef::from(&pair.vm.socket).set_recv_buffer_size(8 * 1024).context("a smaller buffer")?;
    topology.guest().set_freeze(Freeze::Never);
    let refused = || -> Result<u64> {
        ["TCPToZeroWindowAdv", "RcvPruned"]
            .map(|name| topology.vm.counter("TcpExt", name))
            .into_iter()
            .sum()
    };
    attached.wait_until("the VM refuses what it had offered", || Ok(refused()? > 0))?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > BYTES / 2, "only {held} bytes are held, and the VM reads nothing");
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}
