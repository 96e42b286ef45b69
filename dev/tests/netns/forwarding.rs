//! A VM that forwards: its namespace has a second leg, with the far end of each connection.
//!
//! ```text
//! client -- host -- [vst-port]--relay--[vst-vm  VM namespace  vst-leg]--relay--[vst-far  far end]
//! ```
//!
//! The VM has CPU enough, or counts as short of it ([`starve`]): only then does the host
//! acknowledge data early for a host that is one hop behind it, as a container in the VM is.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vsnoop_bpf::{HoldMaps, Port};
use vsnoop_testbed::net::{Net, Netns, TapOptions};
use vsnoop_testbed::relay::{Bottleneck, Direction, Faults, Freeze, Relay, RelayOptions};
use vsnoop_testbed::topology::{Family, PORT, Side, Topology, address};
use vsnoop_tests::PREFIX;

use crate::attached::{self, Attached};
use crate::case::{Case, SHARING_A_CORE};
use crate::pair::Pair;
use crate::{FAMILIES, trial};

const LEG: &str = "vst-leg";
const FAR: &str = "vst-far";
const BYTES: u64 = 1_000_000;
const SMALLER_MTU: usize = 1400;
/// 100 ms there and back.
const DELAY: Duration = Duration::from_millis(50);
const SLOW: Bottleneck = Bottleneck::new(10, 64 << 10);
/// Takes four seconds on the slow leg.
const SLOWLY_BYTES: u64 = 5 * BYTES;
/// Payload on the slow leg for each byte that arrives, at most: what its queue loses of a sender's
/// slow start, and of the engine's.
const SENT_PER_BYTE: f64 = 1.2;
const HOP_LIMIT: &str = "net.ipv6.conf.vst-far.hop_limit";
const LATE_ROUNDS: u32 = 20;

pub fn trials() -> Vec<Trial> {
    let families = |name: &'static str, test: fn(Family) -> Result<()>| {
        FAMILIES.map(|(family_name, families)| {
            trial(format!("forwarding::{name}_{family_name}"), move || {
                families.iter().try_for_each(|family| test(*family))
            })
        })
    };
    [
        families("a_leg_with_a_smaller_mtu_takes_all_uploads", |family| smaller(family, &[])),
        families("a_leg_with_a_smaller_mtu_takes_all_uploads_without_ahead", |family| {
            smaller(family, &["--ahead", "0"])
        }),
        families("an_mtu_that_is_lowered_in_mid_transfer_stops_nothing", lowered),
        families("a_starved_vm_that_forwards_reports_its_mtu_to_the_sender", starved_smaller),
        families("a_slow_leg_gets_no_more_than_it_takes", slow),
        families("a_slow_leg_of_a_starved_vm_gets_few_repeats", starved_slow),
        families("a_path_whose_hops_are_hidden_shows_by_its_lateness", hidden),
        families("a_container_in_a_starved_vm_is_acknowledged_early", container),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The far end, and its link to the VM.
struct Leg {
    // First, so that it ends before its namespace.
    relay: Relay,
    far: Netns,
}

fn leg_address(near: bool, family: Family) -> IpAddr {
    let host = if near { 1 } else { 2 };
    match family {
        Family::V4 => [10, 118, 116, host].into(),
        Family::V6 => [0xfd76, 0x7301, 0, 0, 0, 0, 0, host.into()].into(),
    }
}

impl Leg {
    fn lay(topology: &Topology) -> Result<Self> {
        let far = Net::new(PREFIX).host("far")?;
        let (taps, options) = (TapOptions::default(), RelayOptions::default());
        let relay = topology.vm.relay(LEG, &far, FAR, &taps, &options)?;
        let addresses =
            |near| [(leg_address(near, Family::V4), 24), (leg_address(near, Family::V6), 64)];
        topology.vm.up_with(LEG, &addresses(true))?;
        far.up_with(FAR, &addresses(false))?;
        topology.vm.set_forwarding(true)?;
        for family in [Family::V4, Family::V6] {
            let near = leg_address(true, family);
            far.ip(&format!("route add default via {near} dev {FAR}"))?;
            let (vm, far) = (address(Side::Vm, family), leg_address(false, family));
            topology.client.ip(&format!("route replace {far} via {vm}"))?;
        }
        Ok(Self { relay, far })
    }

    fn set_mtu(&self, topology: &Topology, mtu_bytes: usize) -> Result<()> {
        topology.vm.set_mtu(LEG, mtu_bytes)?;
        self.far.set_mtu(FAR, mtu_bytes)
    }

    fn slow_down(&self) {
        let back = Faults { delay: DELAY, ..Faults::default() };
        let there = Faults { bottleneck: Some(SLOW), ..back.clone() };
        self.relay.set_faults(Direction::LeftToRight, there);
        self.relay.set_faults(Direction::RightToLeft, back);
    }

    fn connect(&self, topology: &Topology, family: Family) -> Result<Pair> {
        Pair::between(&topology.client, &self.far, leg_address(false, family), None)
    }

    /// TCP payload that the VM has sent over the leg, lost bytes too.
    fn sent_bytes(&self) -> u64 {
        self.relay.counters(Direction::LeftToRight).payload_bytes
    }
}

/// Says for an hour that the VM waits for a CPU, as its engine would say again and again.
fn starve(topology: &Topology) -> Result<()> {
    const LONG: Duration = Duration::from_secs(3600);
    let links = topology.host.ip(&format!("-o link show {PORT}"))?;
    let ifindex = links.split(':').next().and_then(|index| index.trim().parse().ok());
    let ifindex: u32 = ifindex.with_context(|| format!("no index in {links}"))?;
    let port = Port::open(topology.host.inode()?, ifindex)?;
    let memory = HoldMaps::open_without_slabs(&port)?.context("the port has no hold")?;
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    memory.starves((Duration::from(now) + LONG).as_nanos() as u64);
    Ok(())
}

/// Attaches, and the engine says that the VM waits for a CPU. The VM of the test answers promptly
/// all the same. Without `--no-passive` the host would leave it alone now and then.
fn attach_starved(topology: &Topology) -> Result<Attached<'_>> {
    let attached = Attached::with(topology, None, &["--no-passive"])?;
    attached.until_it_holds(topology)?;
    starve(topology)?;
    Ok(attached)
}

/// A VM with CPU enough and a second leg.
fn build() -> Result<(Topology, Leg)> {
    let topology = Case { freezes: &[Freeze::Never], ..Case::default() }.build()?;
    let leg = Leg::lay(&topology)?;
    Ok((topology, leg))
}

/// Uploads, and verifies each byte.
fn upload(pair: &mut Pair, bytes: u64) -> Result<()> {
    let Pair { client, vm } = pair;
    thread::scope(|scope| {
        let sending = scope.spawn(|| client.send(bytes));
        let received = vm.receive(bytes);
        let sent = sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?;
        received.and(sent)
    })
}

/// Uploads over a connection of its own, with the time that it took.
fn upload_anew(topology: &Topology, leg: &Leg, family: Family, bytes: u64) -> Result<Duration> {
    let since = Instant::now();
    let mut pair = leg.connect(topology, family)?;
    upload(&mut pair, bytes)?;
    pair.client.until_acknowledged()?;
    Ok(since.elapsed())
}

fn end(mut attached: Attached) -> Result<()> {
    attached.ensure_no_reset()?;
    attached.detach()
}

fn smaller(family: Family, options: &'static [&'static str]) -> Result<()> {
    let (topology, leg) = build()?;
    leg.set_mtu(&topology, SMALLER_MTU)?;
    let attached = Attached::with(&topology, None, options)?;
    // The first one learns the path's MTU, the second one has it from the sender's routes.
    for _ in 0..2 {
        let took = upload_anew(&topology, &leg, family, BYTES);
        println!("{family:?}: {:?}", took.with_context(|| attached.describe())?);
    }
    if attached::is_wanted() {
        ensure!(attached.counter("early_acks")? == 0, "{}", attached.describe());
    }
    end(attached)
}

fn lowered(family: Family) -> Result<()> {
    let (topology, leg) = build()?;
    let attached = Attached::with(&topology, None, &[])?;
    let mut pair = leg.connect(&topology, family)?;
    upload(&mut pair, BYTES)?;
    leg.set_mtu(&topology, SMALLER_MTU)?;
    upload(&mut pair, BYTES).with_context(|| attached.describe())?;
    end(attached)
}

/// The host acknowledges what the VM then reports as too big.
fn starved_smaller(family: Family) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let (topology, leg) = build()?;
    let attached = attach_starved(&topology)?;
    let mut pair = leg.connect(&topology, family)?;
    upload(&mut pair, BYTES).with_context(|| attached.describe())?;
    ensure!(attached.counter("early_bytes")? > BYTES / 2, "{}", attached.describe());

    leg.set_mtu(&topology, SMALLER_MTU)?;
    upload(&mut pair, BYTES).with_context(|| attached.describe())?;
    ensure!(attached.counter("too_big")? > 0, "{}", attached.describe());
    ensure!(attached.counter("forwarded")? > 0, "{}", attached.describe());
    // The sender has believed the report.
    upload_anew(&topology, &leg, family, BYTES).with_context(|| attached.describe())?;
    let ignored = topology.client.counter("TcpExt", "OutOfWindowIcmps")?;
    ensure!(ignored == 0, "the sender has ignored {ignored} reports");
    end(attached)
}

fn slow(family: Family) -> Result<()> {
    let (topology, leg) = build()?;
    let attached = Attached::with(&topology, None, &[])?;
    let sent = upload_slowly(&topology, &leg, family, &attached)?;
    ensure!(sent <= SENT_PER_BYTE, "{sent:.2} bytes for each\n{}", attached.describe());
    end(attached)
}

/// Payload that the VM sends over the slow leg for each one that arrives.
fn upload_slowly(
    topology: &Topology,
    leg: &Leg,
    family: Family,
    attached: &Attached,
) -> Result<f64> {
    leg.slow_down();
    let before = leg.sent_bytes();
    let took = upload_anew(topology, leg, family, SLOWLY_BYTES);
    let took = took.with_context(|| attached.describe())?;
    let sent = (leg.sent_bytes() - before) as f64 / SLOWLY_BYTES as f64;
    println!("{family:?}: {took:?}, {sent:.3} bytes sent for each that arrived");
    Ok(sent)
}

/// The host acknowledges early what the leg cannot take. What the engine repeats is bounded, and
/// the connection is left to the VM.
fn starved_slow(family: Family) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let (topology, leg) = build()?;
    let attached = attach_starved(&topology)?;
    let sent = upload_slowly(&topology, &leg, family, &attached)?;
    ensure!(sent <= SENT_PER_BYTE, "{sent:.2} bytes for each\n{}", attached.describe());
    ensure!(attached.counter("forwarded")? > 0, "{}", attached.describe());
    end(attached)
}

/// A far end whose TTL is that of a VM: only its lateness shows that the VM forwards.
fn hidden(family: Family) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let (topology, leg) = build()?;
    for (key, hops) in [("net.ipv4.ip_default_ttl", "65"), (HOP_LIMIT, "65")] {
        leg.far.set_sysctl(key, hops)?;
    }
    leg.slow_down();
    let _vcpu = NamedThread::start()?;
    let attached = Attached::with(&topology, None, &[])?;
    attached.until_it_holds(&topology)?;
    // A wait of the test's own threads excuses a late ACK.
    for round in 1..=LATE_ROUNDS {
        let before = leg.sent_bytes();
        let took =
            upload_anew(&topology, &leg, family, BYTES).with_context(|| attached.describe())?;
        let sent = (leg.sent_bytes() - before) as f64 / BYTES as f64;
        let late = attached.counter("forwarded")?;
        println!("{family:?}, {round}: {took:?}, {sent:.3} sent for each, {late} late");
        if late > 0 {
            return end(attached);
        }
    }
    bail!("no upload was seen to be late\n{}", attached.describe())
}

/// A thread that sleeps, and has the name of a vCPU.
struct NamedThread {
    ends: std::sync::mpsc::Sender<()>,
    thread: Option<thread::JoinHandle<()>>,
}

impl NamedThread {
    fn start() -> Result<Self> {
        let (ends, end) = std::sync::mpsc::channel();
        let work = move || {
            let _ = end.recv();
        };
        let thread = thread::Builder::new().name("CPU 0/KVM".into()).spawn(work)?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for NamedThread {
    fn drop(&mut self) {
        let _ = self.ends.send(());
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// The far end stands for a container one hop inside the VM, which gets its turn now and then.
fn container(family: Family) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let (topology, leg) = build()?;
    let attached = attach_starved(&topology)?;
    topology.guest().set_freeze(SHARING_A_CORE);
    let before = attached.counter("early_bytes")?;
    upload_anew(&topology, &leg, family, BYTES).with_context(|| attached.describe())?;
    let early = attached.counter("early_bytes")? - before;
    ensure!(early > BYTES / 2, "only {early} bytes early\n{}", attached.describe());
    ensure!(attached.counter("forwarded")? == 0, "{}", attached.describe());
    end(attached)
}
