//! A split download meets a path that becomes narrow or unreachable, a peer that stands still or
//! vanishes, a VM on the same host that is split, too; and connections that are left to the VM.

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_bpf::Port;
use vsnoop_bpf::split::SplitPort;
use vsnoop_packet::format::Tag;
use vsnoop_testbed::net::{Net, Netns, Offloads, check};
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::soak::soaked;
use vsnoop_testbed::socket::SocketOptions;
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::{
    CLIENT_DEVICE, Family, PORT, Side, Topology, TopologyOptions, UPLINK, address,
};
use vsnoop_tests::PREFIX;

use crate::attached::Attached;
use crate::case::{Case, SHARING_A_CORE};
use crate::pair::Pair;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, family) in [("ipv4", Family::V4), ("ipv6", Family::V6)] {
        trials.push(trial(&format!("split::path_mtu_falls::{name}"), move || narrow(family)));
        trials.push(trial(&format!("split::unreachable_is_no_reset::{name}"), move || {
            unreachable(family)
        }));
    }
    trials.extend([
        trial("split::a_peer_that_stands_still_holds_the_vm_back", stands_still),
        trial("split::a_peer_that_vanishes_is_a_reset_of_the_vm", vanishes),
        trial("split::urgent_data_arrives", urgent),
        trial("split::both_ends_on_one_host", both_on_one_host),
        trial("split::mtu_sized_segments", mtu_sized),
        trial("split::a_guest_that_loses_and_repeats", loses),
        trial("split::a_connection_that_was_open_before_is_left_to_the_vm", open_before),
        trial("split::md5_signatures_are_left_to_the_vm", || left_to_the_vm(Left::Md5)),
        trial("split::ecn_is_left_to_the_vm", || left_to_the_vm(Left::Ecn)),
        trial("split::fast_open_is_left_to_the_vm", || left_to_the_vm(Left::FastOpen)),
        trial("split::mptcp_is_left_to_the_vm", || left_to_the_vm(Left::Mptcp)),
        trial("split::vlan_tags_are_left_to_the_vm", || left_to_the_vm(Left::Vlan)),
    ]);
    trials
}

pub const SOME: u64 = 300_000;
pub const MUCH: u64 = 8_000_000;
/// More than all buffers on its way.
pub const MORE: u64 = 60_000_000;
/// A full segment.
const SEGMENT_BYTES: u32 = 1_500;
/// The VM counts as late for the whole test.
const FOR_EVER_NS: u64 = u64::MAX / 2;

pub fn case() -> Case {
    let delay = Faults { delay: Duration::from_millis(5), ..Faults::default() };
    Case {
        options: &["--downloads", "on"],
        hold: Some("64M"),
        freezes: &[SHARING_A_CORE],
        network: delay,
        ..Case::default()
    }
}

pub fn open(host: &Netns, port: &str) -> Result<SplitPort> {
    let index = host.run(|| Ok(nix::net::if_::if_nametoindex(port)?))?;
    let split = SplitPort::open(&Port::open(host.inode()?, index)?)?;
    split.extend_late(0, FOR_EVER_NS);
    Ok(split)
}

/// A download that is split: the VM sends much, of which [`SOME`] was received.
pub struct Download {
    pub bytes: u64,
    pub pair: Pair,
    pub sending: thread::JoinHandle<Result<()>>,
}

impl Download {
    const MOST_TRIES: usize = 20;

    pub fn begin(
        attached: &Attached<'_>,
        split: &SplitPort,
        bytes: u64,
        connect: impl Fn() -> Result<Pair>,
    ) -> Result<Self> {
        attached.wait_until("the splitter works", || Ok(split.counters().is_on == 1))?;
        for _ in 0..Self::MOST_TRIES {
            let mut pair = connect()?;
            let mut vm = pair.vm.twin()?;
            let sending = thread::spawn(move || vm.send(bytes));
            pair.client.receive(SOME)?;
            if !split.split_flows().is_empty() {
                return Ok(Self { bytes, pair, sending });
            }
            pair.client.receive(bytes - SOME)?;
            sending.join().ok().context("the sender panicked")??;
        }
        anyhow::bail!("no connection was split: {:?}", split.counters())
    }

    /// Waits until the client, which does not read meanwhile, has no room for another segment:
    /// what the VM sends is held from now on.
    pub fn until_held(&self, attached: &Attached<'_>, split: &SplitPort) -> Result<()> {
        attached.wait_until("much is held for the client", || {
            let room_bytes = self.pair.client.info()?.receive_window_bytes;
            let held_bytes = split.counters().totals.held_to_peer_bytes;
            Ok(room_bytes < SEGMENT_BYTES && held_bytes > u64::from(SEGMENT_BYTES))
        })
    }

    /// The VM is reset: the kernel tells the thread that writes, or the one that reads.
    pub fn expect_reset_of_vm(self) -> Result<()> {
        let Self { mut pair, sending, .. } = self;
        let read = pair.vm.expect_reset();
        let wrote = sending.join().ok().context("the sender panicked")?;
        let is_reset = |error: &anyhow::Error| {
            let error = error.downcast_ref::<io::Error>();
            error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
        };
        if wrote.as_ref().is_err_and(is_reset) { Ok(()) } else { read }
    }

    /// The rest arrives, and both ends close.
    pub fn end(self) -> Result<()> {
        let Self { bytes, mut pair, sending } = self;
        pair.client.receive(bytes - SOME)?;
        sending.join().ok().context("the sender panicked")??;
        pair.vm.finish()?;
        pair.client.expect_end()?;
        pair.client.finish()?;
        pair.vm.expect_end()
    }
}

const ROUTED: &str = "vst-routed";
const FAR: &str = "vst-far";

/// A network behind the client, which forwards to it.
fn behind_the_client(topology: &Topology, family: Family) -> Result<Netns> {
    let far = Net::new(PREFIX).host("far")?;
    topology.client.veth(ROUTED, &far, FAR)?;
    topology.client.set_forwarding(true)?;
    let (router, host) = far_addresses(family)?;
    let (network, length) = match family {
        Family::V4 => ("10.118.116.0/24", 24),
        Family::V6 => ("fd76:7301::/64", 64),
    };
    topology.client.up_with(ROUTED, &[(router, length)])?;
    far.up_with(FAR, &[(host, length)])?;
    far.ip(&format!("route add default via {router}"))?;
    topology.vm.ip(&format!("route add {network} via {}", address(Side::Client, family)))?;
    Ok(far)
}

/// Returns the addresses of the client, and of the end that it forwards to.
fn far_addresses(family: Family) -> Result<(IpAddr, IpAddr)> {
    let (router, host) = match family {
        Family::V4 => ("10.118.116.1", "10.118.116.2"),
        Family::V6 => ("fd76:7301::1", "fd76:7301::2"),
    };
    Ok((router.parse()?, host.parse()?))
}

fn forwarded(family: Family, event: impl FnOnce(&Topology) -> Result<()>) -> Result<()> {
    let topology = case().build()?;
    let mut attached = case().attach(&topology)?;
    let split = open(&topology.host, PORT)?;
    let far = behind_the_client(&topology, family)?;
    let connect = || Pair::between(&far, &topology.vm, address(Side::Vm, family), None);
    let download = Download::begin(&attached, &split, MUCH, connect)?;
    event(&topology)?;
    download.end().with_context(|| attached.describe())?;
    topology.guest().set_freeze(Freeze::Never);
    attached.ensure_no_reset()?;
    attached.detach()
}

/// Its router says that packets are too big from then on.
fn narrow(family: Family) -> Result<()> {
    forwarded(family, |topology| topology.client.set_mtu(ROUTED, 1300))
}

/// Its router says for a while that it cannot be reached.
fn unreachable(family: Family) -> Result<()> {
    let (_, host) = far_addresses(family)?;
    forwarded(family, |topology| {
        topology.client.ip(&format!("route add unreachable {host}"))?;
        thread::sleep(Duration::from_millis(300));
        topology.client.ip(&format!("route del unreachable {host}")).map(drop)
    })
}

/// Zero windows and probes: for a minute in `make soak`.
fn stands_still() -> Result<()> {
    let topology = case().build()?;
    let mut attached = case().attach(&topology)?;
    let split = open(&topology.host, PORT)?;
    let connect = || Pair::connect(&topology, Family::V4);
    let download = Download::begin(&attached, &split, MORE, connect)?;
    thread::sleep(Duration::from_secs(soaked(6, 60)));
    ensure!(!download.sending.is_finished(), "the VM was not held back");
    ensure!(!split.split_flows().is_empty(), "it was joined with bytes on their way");
    download.end().with_context(|| attached.describe())?;
    topology.guest().set_freeze(Freeze::Never);
    attached.ensure_no_reset()?;
    attached.detach()
}

fn vanishes() -> Result<()> {
    let topology = case().build()?;
    let mut attached = case().attach(&topology)?;
    let split = open(&topology.host, PORT)?;
    // Split sockets retry as often as Linux would; fewer retries make the test short.
    let retries = ["netns", "exec", "vsnoop-split", "sysctl", "net.ipv4.tcp_retries2=3"];
    check(Command::new("ip").args(retries))?;
    let connect = || Pair::connect(&topology, Family::V4);
    let download = Download::begin(&attached, &split, MUCH, connect)?;
    topology.client.ip(&format!("link set {CLIENT_DEVICE} down"))?;
    download.expect_reset_of_vm().with_context(|| attached.describe())?;
    let counted = || -> Result<u64> {
        let text = attached.run(&["stats", PORT, "--json"])?;
        let stats: serde_json::Value = serde_json::from_str(&text)?;
        let resets = stats["ports"][0]["resets"].as_object().context("no resets")?;
        let connections = |(name, count): (&String, &serde_json::Value)| {
            if ["bytes", "unsent"].contains(&name.as_str()) { None } else { count.as_u64() }
        };
        Ok(resets.iter().filter_map(connections).sum())
    };
    attached.wait_until("the reset is counted", || Ok(counted()? > 0))?;
    topology.guest().set_freeze(Freeze::Never);
    attached.wait_until("it is over", || Ok(split.split_flows().is_empty()))?;
    attached.detach()
}

fn urgent() -> Result<()> {
    let mut case = case();
    case.plan = StreamPlan {
        from_vm_bytes: MUCH,
        to_vm_bytes: SOME,
        urgent_every_bytes: Some(50_000),
        ..case.plan
    };
    case.run()
}

/// Both directions at once.
fn exchange(case: Case) -> Result<()> {
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let split = open(&topology.host, PORT)?;
    attached.wait_until("the splitter works", || Ok(split.counters().is_on == 1))?;
    attached.wait_until("a connection was split", || {
        for opener in [Side::Client, Side::Vm] {
            let plan = StreamPlan { opener, ..case.plan.clone() };
            let outcome = Stream::run(&topology, &plan).with_context(|| attached.describe())?;
            ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
        }
        Ok(split.counters().from_sockets > 0)
    })?;
    topology.guest().set_freeze(Freeze::Never);
    attached.ensure_no_reset()?;
    attached.detach()
}

fn much_both_ways() -> StreamPlan {
    StreamPlan { from_vm_bytes: MUCH, to_vm_bytes: MUCH, ..StreamPlan::default() }
}

/// No end has an offload.
fn mtu_sized() -> Result<()> {
    let none = Offloads::NONE;
    let mut case = case();
    (case.topology.to_vm, case.topology.from_vm, case.topology.from_client) = (none, none, none);
    exchange(Case { plan: much_both_ways(), ..case })
}

/// It sends again what the host has acknowledged: its own segments come twice, and ACKs are lost.
fn loses() -> Result<()> {
    let from_vm = Faults { duplicate: 0.1, reorder: 0.05, segment_loss: 0.01, ..Faults::default() };
    let to_vm = Faults { loss: 0.02, ..Faults::default() };
    exchange(Case { plan: much_both_ways(), from_vm, to_vm, ..case() })
}

/// Its window scales are not known.
fn open_before() -> Result<()> {
    let topology = case().build()?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    let mut attached = case().attach(&topology)?;
    let split = open(&topology.host, PORT)?;
    attached.wait_until("the splitter works", || Ok(split.counters().is_on == 1))?;
    let mut vm = pair.vm.twin()?;
    let sending = thread::spawn(move || vm.send(MUCH));
    pair.client.receive(MUCH).with_context(|| attached.describe())?;
    sending.join().ok().context("the sender panicked")??;
    let mode = attached.mode_of(pair.client.socket.local_addr()?.port())?;
    ensure!(mode == "bypass", "shown as {mode}");
    ensure!(split.counters().from_sockets == 0, "it was split");
    topology.guest().set_freeze(Freeze::Never);
    attached.ensure_no_reset()?;
    attached.detach()
}

/// A VM's peer is another VM, whose port has downloads, too.
fn both_on_one_host() -> Result<()> {
    let topology = case().build()?;
    let mut attached = case().attach(&topology)?;
    let other = ["attach", UPLINK, "--downloads", "on", "--hold", "64M"];
    attached.run(&other)?;
    if let Some(network) = topology.network() {
        network.set_freeze(SHARING_A_CORE);
    }
    let splits = [open(&topology.host, PORT)?, open(&topology.host, UPLINK)?];
    for split in &splits {
        attached.wait_until("the splitter works", || Ok(split.counters().is_on == 1))?;
    }
    attached.wait_until("both ports split", || {
        for (from_vm_bytes, to_vm_bytes) in [(MUCH, SOME), (SOME, MUCH), (MUCH, MUCH)] {
            for family in [Family::V4, Family::V6] {
                let plan =
                    StreamPlan { family, from_vm_bytes, to_vm_bytes, ..StreamPlan::default() };
                let outcome = Stream::run(&topology, &plan).with_context(|| attached.describe())?;
                ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
            }
        }
        Ok(splits.iter().all(|split| split.counters().from_sockets > 0))
    })?;
    topology.guest().set_freeze(Freeze::Never);
    if let Some(network) = topology.network() {
        network.set_freeze(Freeze::Never);
    }
    attached.run(&["detach", UPLINK])?;
    attached.ensure_no_reset()?;
    attached.detach()
}

#[derive(Clone, Copy, Debug)]
enum Left {
    Ecn,
    FastOpen,
    Md5,
    Mptcp,
    Vlan,
}

/// Connections that sockets cannot be made for: complete, and never split.
fn left_to_the_vm(what: Left) -> Result<()> {
    let mut case = case();
    match what {
        Left::Ecn => case.sysctls = vec![("net.ipv4.tcp_ecn", "1")],
        Left::FastOpen => {
            case.sysctls = vec![("net.ipv4.tcp_fastopen", "3")];
            case.plan.socket = SocketOptions { fast_open: true, ..SocketOptions::default() };
        }
        Left::Md5 => case.plan.socket = SocketOptions { md5: true, ..SocketOptions::default() },
        Left::Mptcp => {
            case.plan.socket = SocketOptions { mptcp: true, ..SocketOptions::default() };
        }
        Left::Vlan => {
            let tags = vec![Tag::customer(7)];
            case.topology = TopologyOptions { tags, network: true, ..case.topology };
        }
    }
    let plan = StreamPlan { from_vm_bytes: MUCH, to_vm_bytes: SOME, ..case.plan.clone() };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let split = open(&topology.host, PORT)?;
    attached.wait_until("the splitter works", || Ok(split.counters().is_on == 1))?;
    for opener in [Side::Client, Side::Vm, Side::Client, Side::Vm] {
        let before = split.counters().from_sockets;
        let outcome = Stream::run(&topology, &StreamPlan { opener, ..plan.clone() })?;
        ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
        let after = split.counters().from_sockets;
        let has_it = match what {
            Left::Ecn => outcome.client.info()?.ecn && outcome.vm.info()?.ecn,
            Left::FastOpen => outcome.client.info()?.fast_open || outcome.vm.info()?.fast_open,
            Left::Md5 | Left::Mptcp | Left::Vlan => true,
        };
        ensure!(!has_it || after == before, "{what:?}: it was split");
    }
    topology.guest().set_freeze(Freeze::Never);
    attached.ensure_no_reset()?;
    attached.detach()
}
