//! Incast control: windows are shaped, and nothing else changes. That it prevents incast losses is
//! an experiment's to show.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::{
    BRIDGE, CLIENT_DEVICE, CLIENT_MAC, Family, PORT, Side, Topology, TopologyOptions, UPLINK,
    VM_MAC, address,
};

use crate::attached::{self, Attached};
use crate::case::{Case, Early, SHARING_A_CORE};
use crate::pair::Pair;
use crate::{FAMILIES, trial};

const SIZES: [(&str, Offloads); 2] =
    [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)];
/// A queue of which every one of many flows gets a segment at most.
const SHALLOW: &[&str] = &["--incast", "1G", "--incast-buffer", "16K"];
/// With what is on the wire, and a unit of the scale.
const BOUND: u64 = 2 * (16 << 10);
const ORDINARY: &[&str] = &["--incast", "1G", "--uplink", UPLINK];
/// Both without early acknowledgement.
const SHALLOW_ALONE: &[&str] = &["--observe", "--incast", "1G", "--incast-buffer", "16K"];
const ORDINARY_ALONE: &[&str] = &["--observe", "--incast", "1G", "--uplink", UPLINK];
/// Far more than there is credit for.
const MANY: u64 = 40;
/// An interface beside the one that the client is at.
const BESIDE: &[&str] = &["--incast", "1G", "--incast-buffer", "16K", "--uplink", OTHER];
const BESIDE_ALONE: &[&str] =
    &["--observe", "--incast", "1G", "--incast-buffer", "16K", "--uplink", OTHER];
const SHALLOW_HERE: &[&str] = &["--incast", "1G", "--incast-buffer", "16K", "--uplink", UPLINK];
/// A second way from the client to the host's bridge.
const OTHER: &str = "vst-other";
const CLIENT_OTHER: &str = "vst-client2";
/// The window of a SYN-ACK is 64 KB at most; a shallow queue leaves little of that.
const UNTOUCHED: u32 = 60_000;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (size, offloads) in SIZES {
        for (name, families) in FAMILIES {
            trials.push(trial(format!("incast::streams_arrive_{name}_{size}"), move || {
                streams(Case { families, ..case(offloads, ORDINARY) })
            }));
            trials.push(trial(format!("incast::alone_streams_arrive_{name}_{size}"), move || {
                streams(Case { families, ..case(offloads, ORDINARY_ALONE) })
            }));
            trials.push(trial(format!("incast::lost_segments_{name}_{size}"), move || {
                let loss = if offloads.tso { 0.05 } else { 0.01 };
                let network = Faults { loss, ..Faults::default() };
                streams(Case { families, network, ..case(offloads, ORDINARY) })
            }));
        }
        trials.push(trial(format!("incast::with_a_small_hold_{size}"), move || {
            streams(Case { hold: Some("4M"), ..case(offloads, ORDINARY) })
        }));
        for (mode, shallow) in [("", SHALLOW), ("alone_", SHALLOW_ALONE)] {
            trials.push(trial(format!("incast::{mode}many_at_once_{size}"), move || {
                many(case(offloads, shallow))
            }));
            trials.push(trial(format!("incast::{mode}off_while_many_send_{size}"), move || {
                turned_off(case(offloads, shallow))
            }));
            trials.push(trial(format!("incast::{mode}windows_on_the_wire_{size}"), move || {
                window(case(offloads, shallow))
            }));
            trials.push(trial(format!("incast::{mode}off_and_on_again_{size}"), move || {
                off_and_on(case(offloads, shallow))
            }));
        }
        trials.push(trial(format!("incast::uplink_is_deleted_{size}"), move || {
            gone(case(offloads, BESIDE))
        }));
        for (mode, options) in [("", BESIDE), ("alone_", BESIDE_ALONE)] {
            trials.push(trial(
                format!("incast::{mode}what_comes_beside_the_uplink_is_left_alone_{size}"),
                move || beside(case(offloads, options)),
            ));
        }
        trials.push(trial(format!("incast::a_connection_takes_another_way_{size}"), move || {
            another_way(case(offloads, BESIDE))
        }));
        for (way, through_bridge) in [("the_uplink", false), ("a_bridge", true)] {
            trials.push(trial(format!("incast::routed_through_{way}_{size}"), move || {
                routed(case(offloads, SHALLOW_HERE), through_bridge)
            }));
        }
    }
    trials
}

fn case(offloads: Offloads, options: &'static [&'static str]) -> Case {
    let base = Case::default();
    let is_alone = options.contains(&"--observe");
    Case {
        early: if is_alone { Early::Never } else { Early::Yes },
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        options,
        freezes: &[SHARING_A_CORE, Freeze::Never],
        ..base
    }
}

fn streams(case: Case) -> Result<()> {
    case.run_and(|_, attached, _| until_all_has_ended(attached))
}

/// The outstanding credit of flows, and their places in the queue, go with them.
fn until_all_has_ended(attached: &Attached<'_>) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    attached.wait_until("nothing is shaped any more", || {
        Ok(attached.uplink("flows")? == 0 && attached.uplink("waiting")? == 0)
    })
}

/// Many flows begin at once; few of them can have credit.
fn many(case: Case) -> Result<()> {
    many_meanwhile(case, 100_000, |_| Ok(()))
}

/// Turns incast control off while nearly all flows are queued.
fn turned_off(case: Case) -> Result<()> {
    many_meanwhile(case, 5_000_000, |attached| attached.run(&["incast", "off"]).map(drop))
}

fn many_meanwhile(
    case: Case,
    to_vm_bytes: u64,
    meanwhile: impl FnOnce(&Attached<'_>) -> Result<()>,
) -> Result<()> {
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let plan = StreamPlan {
        to_vm_bytes,
        from_vm_bytes: 2000,
        pause_every_bytes: Some(1000),
        ..case.plan.clone()
    };
    let streams = (0..MANY)
        .map(|seed| Stream::start(&topology, &StreamPlan { seed, ..plan.clone() }))
        .collect::<Result<Vec<_>>>()?;
    streams.iter().try_for_each(Stream::wait_paused)?;
    streams.iter().for_each(Stream::go_on);
    meanwhile(&attached)?;
    for stream in streams {
        let outcome = stream.finish().with_context(|| attached.describe())?;
        ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    }
    topology.guest().set_freeze(Freeze::Never);
    until_all_has_ended(&attached)?;
    case.verify_early(&attached)?;
    attached.detach()
}

/// The window that the sender's TCP sees never exceeds the credit.
fn window(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    drop(shaped_pair(&topology, &attached)?);
    if case.early == Early::Never {
        case.verify_early(&attached)?;
    }
    attached.detach()
}

/// Turned off, windows are the VM's own, of connections too that were shaped before; then new ones
/// are shaped again.
fn off_and_on(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = shaped_pair(&topology, &attached)?;
    attached.run(&["incast", "off"])?;
    let most = most_window(&mut pair)?;
    ensure!(most > BOUND, "off, a window of {most} bytes\n{}", attached.describe());
    attached.run(&["incast", "set", "--rate", "1G"])?;
    drop(shaped_pair(&topology, &attached)?);
    drop(pair);
    attached.detach()
}

/// The interface that incast control looks at is deleted while a connection is shaped; the senders'
/// packets take another way.
fn gone(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    topology.add_way(OTHER, CLIENT_OTHER, CLIENT_MAC)?;
    move_client(&topology, CLIENT_DEVICE, CLIENT_OTHER)?;
    let mut attached = case.attach(&topology)?;
    let mut pair = shaped_pair(&topology, &attached)?;
    move_client(&topology, CLIENT_OTHER, CLIENT_DEVICE)?;
    topology.host.delete(OTHER)?;
    attached.wait_until("the uplink is missed", || {
        Ok(attached.run(&["status", "--json"])?.contains("\"state\":\"gone\"")
            && attached.uplink("rate_bits_per_second")? == 0)
    })?;
    expect_own_windows(&mut pair, &attached)?;
    drop(pair);
    attached.detach()
}

/// Packets do not come through the uplink, as between VMs of one bridge: none is shaped, whichever
/// end opens the connection, from its handshake on.
fn beside(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    topology.add_way(OTHER, CLIENT_OTHER, CLIENT_MAC)?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    let first = pair.client.info()?.send_window_bytes;
    ensure!(first >= UNTOUCHED, "the SYN-ACK shows {first} bytes\n{}", attached.describe());
    expect_own_windows(&mut pair, &attached)?;
    drop(pair);
    let at = address(Side::Client, Family::V4);
    let mut pair = Pair::between(&topology.vm, &topology.client, at, None)?;
    std::mem::swap(&mut pair.client, &mut pair.vm);
    expect_own_windows(&mut pair, &attached)?;
    drop(pair);
    case.verify_early(&attached)?;
    attached.detach()
}

/// A connection is shaped while its sender's packets come through the uplink, and then only.
fn another_way(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    topology.add_way(OTHER, CLIENT_OTHER, CLIENT_MAC)?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    expect_own_windows(&mut pair, &attached)?;
    move_client(&topology, CLIENT_DEVICE, CLIENT_OTHER)?;
    pair.client.send(10_000)?;
    pair.vm.receive(10_000)?;
    attached.wait_until("the connection is shaped", || Ok(attached.uplink("flows")? == 1))?;
    move_client(&topology, CLIENT_OTHER, CLIENT_DEVICE)?;
    expect_own_windows(&mut pair, &attached)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    expect_own_windows(&mut pair, &attached)?;
    move_client(&topology, CLIENT_DEVICE, CLIENT_OTHER)?;
    drop(shaped_pair(&topology, &attached)?);
    drop(pair);
    attached.detach()
}

/// The host routes between the uplink, or the bridge that it is a port of, and the VM's tap.
fn routed(case: Case, through_bridge: bool) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    let host = &topology.host;
    let way = if through_bridge { BRIDGE } else { UPLINK };
    host.ip(&format!("link set {PORT} nomaster"))?;
    if !through_bridge {
        host.ip(&format!("link set {UPLINK} nomaster"))?;
    }
    host.set_sysctl("net.ipv4.ip_forward", "1")?;
    for (device, side, mac, other_mac) in
        [(way, Side::Client, CLIENT_MAC, VM_MAC), (PORT, Side::Vm, VM_MAC, CLIENT_MAC)]
    {
        // Each end takes the host for the other one.
        host.set_mac(device, other_mac)?;
        host.up(device)?;
        let there = address(side, Family::V4);
        host.ip(&format!("route add {there}/32 dev {device}"))?;
        host.add_neighbour(device, there, mac)?;
    }
    let mut attached = case.attach(&topology)?;
    drop(shaped_pair(&topology, &attached)?);
    attached.detach()
}

/// The client uses another of its devices; its connections live on.
fn move_client(topology: &Topology, from: &str, to: &str) -> Result<()> {
    let client = &topology.client;
    let at = address(Side::Client, Family::V4);
    client.ip(&format!("address del {at}/24 dev {from}"))?;
    client.add_address(to, at, 24)?;
    client.add_neighbour(to, address(Side::Vm, Family::V4), VM_MAC)
}

/// A connection whose windows incast control sets. On a busy host a long round trip may make a
/// connection out of scope (not local): then another one is tried.
fn shaped_pair(topology: &Topology, attached: &Attached<'_>) -> Result<Pair> {
    let mut found = None;
    attached.wait_until("incast control sets the windows of a connection", || {
        let mut pair = Pair::connect(topology, Family::V4)?;
        let most = most_window(&mut pair)?;
        found = (1..=BOUND).contains(&most).then_some(pair);
        Ok(found.is_some())
    })?;
    found.context("it has windows of its own")
}

/// The VM's own window; no flow is shaped or queued.
fn expect_own_windows(pair: &mut Pair, attached: &Attached<'_>) -> Result<()> {
    let most = most_window(pair)?;
    ensure!(most > BOUND, "a window of {most} bytes\n{}", attached.describe());
    for count in ["flows", "waiting", "granted_bytes"] {
        ensure!(attached.uplink(count)? == 0, "{count} is not 0\n{}", attached.describe());
    }
    Ok(())
}

/// The largest window that the sender's TCP got while it sent, each time that all bytes had
/// arrived: bytes that the VM has not acknowledged are part of a window, but do not cross the last
/// hop again.
fn most_window(pair: &mut Pair) -> Result<u64> {
    const BYTES: u64 = 300_000;
    let mut most = 0;
    for _ in 0..10 {
        pair.client.send(BYTES / 10)?;
        pair.vm.receive(BYTES / 10)?;
        pair.client.until_acknowledged()?;
        most = most.max(pair.client.info()?.send_window_bytes);
    }
    Ok(most.into())
}
