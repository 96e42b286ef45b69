//! Faults before the hooks, while the host holds what came through: none may ever show in a stream.

use std::time::Duration;

use anyhow::Context;
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::{Counters, Direction, Faults};
use vsnoop_testbed::stream::StreamPlan;
use vsnoop_testbed::topology::{Family, TopologyOptions};

use super::{SIZE, SMALL_WINDOW};
use crate::case::{Case, marks_are_echoed};
use crate::{FAMILIES, trial};

type Evidence = fn(&Counters) -> u64;

pub fn trials() -> Vec<Trial> {
    let none = Faults::default();
    let reorder = Faults { reorder: 0.1, reorder_by: Duration::from_millis(5), ..none.clone() };
    let faults: [(&str, Faults, Evidence); 5] = [
        ("loss", Faults { loss: 0.02, ..none.clone() }, |counted| counted.lost),
        ("reordering", reorder.clone(), |counted| counted.reordered),
        ("duplication", Faults { duplicate: 0.1, ..none.clone() }, |counted| counted.duplicated),
        ("delay", Faults { delay: Duration::from_millis(5), ..none }, |counted| counted.delivered),
        (
            "all_at_once",
            Faults { loss: 0.01, duplicate: 0.02, corrupt: 0.01, ..reorder },
            |counted| counted.lost + counted.corrupted + counted.reordered,
        ),
    ];
    // Each fault with either family, and with either size.
    let forms = [
        (FAMILIES[0], "super_packets", Offloads::SUPER_PACKETS),
        (FAMILIES[1], "mtu_sized", Offloads::NONE),
    ];
    let mut trials = Vec::new();
    for ((family_name, families), size, offloads) in forms {
        for (name, faults, evidence) in &faults {
            let (network, evidence) = (faults.clone(), *evidence);
            trials.push(trial(format!("hold::network::{name}_{family_name}_{size}"), move || {
                hostile(
                    Case {
                        topology: TopologyOptions {
                            from_client: offloads,
                            ..Case::default().topology
                        },
                        families,
                        network,
                        ..Case::default()
                    },
                    evidence,
                )
            }));
        }
        trials.push(trial(
            format!("hold::network::congestion_marks_{family_name}_{size}"),
            move || congestion_marks(families, offloads),
        ));
    }
    trials
}

fn hostile(mut case: Case, evidence: Evidence) -> anyhow::Result<()> {
    if case.topology.from_client.tso {
        // Fewer frames carry the same bytes.
        for probability in [&mut case.network.loss, &mut case.network.corrupt] {
            *probability *= 5.0;
        }
    }
    let plan = StreamPlan { to_vm_bytes: 1_000_000, ..case.plan.clone() };
    let sysctls = vec![SMALL_WINDOW];
    let case = Case { hold: Some(SIZE), plan, sysctls, ..case };
    case.run_and(|topology, attached, _| {
        let network = topology.network().context("no network relay")?;
        case.until_it_happens(topology, attached, || {
            evidence(&network.counters(Direction::LeftToRight))
        })?;
        attached.ensure_held()
    })
}

/// A mark on what was held comes to the VM, and its echo to the sender.
fn congestion_marks(families: &'static [Family], offloads: Offloads) -> anyhow::Result<()> {
    let base = Case::default();
    let case = Case {
        sysctls: vec![("net.ipv4.tcp_ecn", "1"), SMALL_WINDOW],
        network: Faults { mark_ce: if offloads.tso { 0.05 } else { 0.005 }, ..Faults::default() },
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        hold: Some(SIZE),
        // Enough super-packets that one at least is marked: of 1 MB one run in a hundred has none.
        plan: StreamPlan { to_vm_bytes: 4_000_000, ..base.plan.clone() },
        families,
        ..base
    };
    case.run_and(|topology, attached, _| {
        marks_are_echoed(topology)?;
        attached.ensure_held()
    })
}
