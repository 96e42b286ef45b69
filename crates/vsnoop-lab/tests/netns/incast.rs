//! Incast control: windows are shaped, and nothing else changes. That it prevents what it is for is an
//! experiment's to show.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_lab::testbed::net::Offloads;
use vsnoop_lab::testbed::relay::{Faults, Freeze};
use vsnoop_lab::testbed::stream::{Plan, Stream};
use vsnoop_lab::testbed::topology::{Family, Topology, TopologyOptions};

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
const ORDINARY: &[&str] = &["--incast", "1G", "--uplink", "vst-uplink"];
/// The same two without early acknowledgement.
const SHALLOW_ALONE: &[&str] = &["--observe", "--incast", "1G", "--incast-buffer", "16K"];
const ORDINARY_ALONE: &[&str] = &["--observe", "--incast", "1G", "--uplink", "vst-uplink"];
/// Far more than there is credit for.
const MANY: u64 = 40;
/// An interface that nothing comes through.
const BESIDE: &[&str] = &["--incast", "1G", "--incast-buffer", "16K", "--uplink", "vst-gone"];

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
        trials.push(trial(format!("incast::with_a_hold_{size}"), move || {
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

/// What flows owed, and their places in line, go with them.
fn until_all_has_ended(attached: &Attached<'_>) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    attached.wait_until("nothing is shaped any more", || {
        Ok(attached.uplink("flows")? == 0 && attached.uplink("waiting")? == 0)
    })
}

/// All at once, of which few can have credit.
fn many(case: Case) -> Result<()> {
    many_meanwhile(case, 100_000, |_| Ok(()))
}

/// The same, and incast control is turned off while nearly all stand in line.
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
    let plan = Plan {
        to_vm_bytes,
        from_vm_bytes: 2000,
        pause_every_bytes: Some(1000),
        ..case.plan.clone()
    };
    let streams = (0..MANY)
        .map(|seed| Stream::start(&topology, &Plan { seed, ..plan.clone() }))
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

/// What the sender's TCP takes its window for never is more than there is credit for.
fn window(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    is_shaped(&topology, &attached)?;
    if case.early == Early::Never {
        case.verify_early(&attached)?;
    }
    attached.detach()
}

fn is_shaped(topology: &Topology, attached: &Attached<'_>) -> Result<()> {
    let most = most_window(&mut Pair::connect(topology, Family::V4)?)?;
    ensure!((1..=BOUND).contains(&most), "a window of {most} bytes\n{}", attached.describe());
    Ok(())
}

/// Turned off, windows are the VM's own, of connections too that were shaped before; then new ones are
/// shaped again.
fn off_and_on(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    let most = most_window(&mut pair)?;
    ensure!(most <= BOUND, "a window of {most} bytes\n{}", attached.describe());
    attached.run(&["incast", "off"])?;
    let most = most_window(&mut pair)?;
    ensure!(most > BOUND, "off, a window of {most} bytes\n{}", attached.describe());
    attached.run(&["incast", "set", "--rate", "1G"])?;
    is_shaped(&topology, &attached)?;
    drop(pair);
    attached.detach()
}

/// The interface that incast control looks at is deleted while a connection is shaped; the senders' packets
/// take another way.
fn gone(case: Case) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case };
    let topology = case.build()?;
    topology.host.ip("link add vst-gone type veth peer name vst-far")?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    let most = most_window(&mut pair)?;
    ensure!(most <= BOUND, "a window of {most} bytes\n{}", attached.describe());
    topology.host.ip("link del vst-gone")?;
    attached.wait_until("the uplink is missed", || {
        Ok(attached.run(&["status", "--json"])?.contains("\"state\":\"gone\"")
            && attached.uplink("rate_bits_per_second")? == 0)
    })?;
    let most = most_window(&mut pair)?;
    ensure!(most > BOUND, "without an uplink, a window of {most} bytes\n{}", attached.describe());
    drop(pair);
    attached.detach()
}

/// The largest that the sender's TCP was told while it sent, each time that all had arrived: what the VM has
/// not acknowledged yet is part of a window, and nothing that the last hop has to take.
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
