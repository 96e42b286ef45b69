//! A guest that loses or damages frames that it was handed: with a hold the host has a copy of all
//! acknowledged data, so that every stream is complete.

use std::time::Duration;

use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::{Counters, Direction, Faults};
use vsnoop_testbed::stream::StreamPlan;
use vsnoop_testbed::topology::{Family, Topology, TopologyOptions};

use super::SIZE;
use crate::attached::{self, Attached};
use crate::case::Case;
use crate::pair::Pair;
use crate::trial;

type Evidence = fn(&Counters) -> u64;

pub fn trials() -> Vec<Trial> {
    let data = Faults { data_only: true, ..Faults::default() };
    let lost: Evidence = |counted| counted.lost;
    let faults: [(&str, Faults, Evidence); 7] = [
        ("loss_of_1_percent", Faults { loss: 0.01, ..data.clone() }, lost),
        ("loss_of_20_percent", Faults { loss: 0.2, ..data.clone() }, lost),
        ("loss_of_1_percent_of_segments", Faults { segment_loss: 0.01, ..data.clone() }, lost),
        ("loss_of_20_percent_of_segments", Faults { segment_loss: 0.2, ..data.clone() }, lost),
        ("corruption", Faults { corrupt: 0.05, ..data }, |counted| counted.corrupted),
        (
            "reordering",
            Faults { reorder: 0.05, reorder_by: Duration::from_millis(5), ..Faults::default() },
            |counted| counted.reordered,
        ),
        ("duplication", Faults { duplicate: 0.05, ..Faults::default() }, |counted| {
            counted.duplicated
        }),
    ];
    let mut trials = Vec::new();
    for (size, offloads) in
        [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)]
    {
        for (name, faults, evidence) in &faults {
            let (faults, evidence) = (faults.clone(), *evidence);
            trials.push(trial(format!("hold::lossy::{name}_{size}"), move || {
                mended(offloads, faults, evidence)
            }));
        }
    }
    trials
}

fn mended(offloads: Offloads, to_vm: Faults, evidence: Evidence) -> anyhow::Result<()> {
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions {
            from_client: offloads,
            from_vm: offloads,
            ..base.topology.clone()
        },
        hold: Some(SIZE),
        plan: StreamPlan { to_vm_bytes: 1_000_000, ..base.plan.clone() },
        families: &[Family::V4, Family::V6],
        to_vm,
        ..base
    };
    case.run_and(|topology, attached, _| {
        let counters = || topology.guest().counters(Direction::LeftToRight);
        case.until_it_happens(topology, attached, || evidence(&counters()))?;
        if !attached::is_wanted() {
            return Ok(());
        }
        attached.ensure_held()?;
        let counted = counters();
        if counted.lost + counted.corrupted > 0 { resent(topology, attached) } else { Ok(()) }
    })
}

/// The host retransmits: a connection sends until a retransmission was seen.
fn resent(topology: &Topology, attached: &Attached<'_>) -> anyhow::Result<()> {
    const BYTES: u64 = 100_000;
    let mut pair = Pair::connect(topology, Family::V4)?;
    attached.wait_until("the host has sent something again", || {
        pair.client.send(BYTES)?;
        pair.vm.receive(BYTES)?;
        Ok(attached.hold("resends")? > 0)
    })
}
