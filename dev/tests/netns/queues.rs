//! A tap with several queues. The kernel moves a connection to the queue that the VM answers on,
//! without waiting for the other to run empty, and the VM reads them as it likes: segments overtake
//! each other behind the hooks.

use anyhow::ensure;
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::{Direction, Freeze};
use vsnoop_testbed::stream::StreamPlan;
use vsnoop_testbed::topology::{Family, Side, TopologyOptions};

use crate::case::{Case, SHARING_A_CORE};
use crate::{FAMILIES, trial};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family_name, families) in FAMILIES {
        for (size, offloads) in
            [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)]
        {
            trials.push(trial(
                format!("queues::two_keep_no_order_{family_name}_{size}"),
                move || two(families, offloads),
            ));
        }
    }
    trials
}

/// Reordering is not loss: every byte arrives, both ways.
fn two(families: &'static [Family], offloads: Offloads) -> anyhow::Result<()> {
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions {
            queues: 2,
            from_client: offloads,
            from_vm: offloads,
            ..base.topology.clone()
        },
        plan: StreamPlan { to_vm_bytes: 1_000_000, ..base.plan.clone() },
        families,
        freezes: &[SHARING_A_CORE, Freeze::Never],
        ..base
    };
    case.run_and(|topology, attached, _| {
        let counted = topology.guest().counters(Direction::LeftToRight);
        ensure!(
            (1..counted.frames).contains(&counted.other_queues),
            "all frames were in one queue: {counted:?}"
        );
        let overtaken = topology.netns(Side::Vm).counter("TcpExt", "TCPOFOQueue")?;
        // The engine may have handed all of them over, to one queue at a time.
        ensure!(
            overtaken > 0 || attached.has_hold(),
            "the VM got every segment in order: {counted:?}"
        );
        Ok(())
    })
}
