//! Incast control: windows are shaped, and nothing else changes. That it prevents what it is for is an
//! experiment's to show.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_lab::testbed::net::Offloads;
use vsnoop_lab::testbed::relay::{Faults, Freeze};
use vsnoop_lab::testbed::stream::{Plan, Stream};
use vsnoop_lab::testbed::topology::{Family, TopologyOptions};

use crate::attached::{self, Attached};
use crate::case::{Case, SHARING_A_CORE};
use crate::pair::Pair;
use crate::{FAMILIES, trial};

const SIZES: [(&str, Offloads); 2] =
    [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)];
/// A queue of which every one of many flows gets a segment at most.
const SHALLOW: &[&str] = &["--incast", "1G", "--incast-buffer", "16K"];
const SHALLOW_BYTES: u64 = 16 << 10;
const ORDINARY: &[&str] = &["--incast", "1G", "--uplink", "vst-uplink"];
/// Far more than there is credit for.
const MANY: u64 = 40;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (size, offloads) in SIZES {
        for (name, families) in FAMILIES {
            trials.push(trial(format!("incast::streams_arrive_{name}_{size}"), move || {
                streams(Case { families, ..case(offloads, ORDINARY) })
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
        trials.push(trial(format!("incast::many_at_once_{size}"), move || many(offloads)));
        trials.push(trial(format!("incast::windows_on_the_wire_{size}"), move || window(offloads)));
    }
    trials
}

fn case(offloads: Offloads, options: &'static [&'static str]) -> Case {
    let base = Case::default();
    Case {
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

fn many(offloads: Offloads) -> Result<()> {
    let case = case(offloads, SHALLOW);
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let plan = Plan { to_vm_bytes: 100_000, from_vm_bytes: 1000, ..case.plan.clone() };
    let streams = (0..MANY)
        .map(|seed| Stream::start(&topology, &Plan { seed, ..plan.clone() }))
        .collect::<Result<Vec<_>>>()?;
    for stream in streams {
        let outcome = stream.finish().with_context(|| attached.describe())?;
        ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    }
    topology.guest().set_freeze(Freeze::Never);
    until_all_has_ended(&attached)?;
    attached.detach()
}

/// What the sender's TCP takes its window for never is more than there is credit for.
fn window(offloads: Offloads) -> Result<()> {
    const BYTES: u64 = 300_000;
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..case(offloads, SHALLOW) };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    let mut most = 0;
    for _ in 0..10 {
        pair.client.send(BYTES / 10)?;
        pair.vm.receive(BYTES / 10)?;
        most = most.max(pair.client.info()?.send_window_bytes);
    }
    // With what is on the wire, and a unit of the scale.
    ensure!(
        (1..=2 * SHALLOW_BYTES).contains(&u64::from(most)),
        "the sender had a window of {most} bytes\n{}",
        attached.describe()
    );
    drop(pair);
    attached.detach()
}
