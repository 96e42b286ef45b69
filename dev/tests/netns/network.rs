//! Faults of the network, before the hooks: none of them may ever show in a stream.

use std::time::Duration;

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::{Counters, Direction, Faults, Freeze};
use vsnoop_testbed::stream::StreamPlan;
use vsnoop_testbed::topology::{Family, TopologyOptions};

use crate::attached;
use crate::case::{Case, Early, SHARING_A_CORE};
use crate::{FAMILIES, trial};

type Evidence = fn(&Counters) -> u64;

pub fn trials() -> Vec<Trial> {
    let reorder = Faults { reorder: 0.1, reorder_by: Duration::from_millis(5), ..none() };
    let faults: [(&str, Faults, Evidence); 8] = [
        ("loss", Faults { loss: 0.02, ..none() }, |counted| counted.lost),
        ("reordering", reorder.clone(), |counted| counted.reordered),
        ("duplication", Faults { duplicate: 0.1, ..none() }, |counted| counted.duplicated),
        ("corruption", Faults { corrupt: 0.03, ..none() }, |counted| counted.corrupted),
        ("misdirection", Faults { misdirect: 0.03, data_only: true, ..none() }, |counted| {
            counted.misdirected
        }),
        ("delay", Faults { delay: Duration::from_millis(5), ..none() }, |counted| {
            counted.delivered
        }),
        ("tiny_segments", Faults { segment_bytes: Some(100), ..none() }, |counted| {
            counted.delivered - counted.frames
        }),
        (
            "all_at_once",
            Faults { loss: 0.01, duplicate: 0.02, corrupt: 0.01, ..reorder },
            |counted| counted.lost + counted.corrupted + counted.reordered,
        ),
    ];
    let mut trials = Vec::new();
    for (family_name, families) in FAMILIES {
        for (size, offloads) in
            [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)]
        {
            for (name, faults, evidence) in &faults {
                let (faults, evidence) = (faults.clone(), *evidence);
                trials.push(trial(format!("network::{name}_{family_name}_{size}"), move || {
                    hostile(families, offloads, faults, evidence)
                }));
            }
        }
        trials
            .push(trial(format!("network::fragments_{family_name}"), move || fragments(families)));
    }
    trials
}

fn none() -> Faults {
    Faults::default()
}

fn hostile(
    families: &'static [Family],
    offloads: Offloads,
    mut network: Faults,
    evidence: Evidence,
) -> anyhow::Result<()> {
    if offloads.tso {
        // Fewer frames carry the same bytes.
        for probability in [&mut network.loss, &mut network.corrupt, &mut network.misdirect] {
            *probability *= 5.0;
        }
    }
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        plan: StreamPlan { to_vm_bytes: 600_000, ..base.plan.clone() },
        families,
        network,
        // A VM that always answers late, and one that always answers promptly.
        freezes: &[SHARING_A_CORE, Freeze::Never],
        ..base
    };
    case.run_and(|topology, attached, _| {
        let network = topology.network().context("no network relay")?;
        case.until_it_happens(topology, attached, || {
            evidence(&network.counters(Direction::LeftToRight))
        })
    })
}

/// The hooks leave fragments to the VM; they may acknowledge only segments that are too small to be
/// fragmented.
fn fragments(families: &'static [Family]) -> anyhow::Result<()> {
    let base = Case::default();
    let whole = base.plan.to_vm_bytes * base.streams().len() as u64;
    let case = Case {
        families,
        network: Faults { fragment_bytes: Some(512), data_only: true, ..none() },
        early: Early::Any,
        ..base
    };
    case.run_and(|topology, attached, _| {
        let network = topology.network().context("no network relay")?;
        let counted = network.counters(Direction::LeftToRight);
        ensure!(counted.fragmented > 0, "nothing was fragmented: {counted:?}");
        if attached::is_wanted() {
            let early = attached.counter("early_bytes")?;
            ensure!(early < whole / 20, "{early} of {whole} bytes in fragments acknowledged early");
        }
        Ok(())
    })
}
