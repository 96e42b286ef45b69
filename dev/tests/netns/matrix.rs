//! Every form in which frames cross the tap: IP version, VLAN tags, super-packets or MTU-sized
//! segments, checksums left to the device or complete.

use anyhow::ensure;
use libtest_mimic::Trial;
use vsnoop_packet::format::Tag;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::Direction;
use vsnoop_testbed::topology::{Family, TopologyOptions};

use crate::attached;
use crate::case::{Case, Early};
use crate::{FAMILIES, trial};

pub fn trials() -> Vec<Trial> {
    let tags = [
        ("untagged", vec![]),
        ("tagged", vec![Tag::customer(7)]),
        ("double_tagged", vec![Tag::service(100), Tag::customer(7)]),
    ];
    let sizes = [
        ("super_packets", Offloads::SUPER_PACKETS, Offloads::SUPER_PACKETS),
        ("mtu_sized_with_checksum_offload", Offloads::CHECKSUM, Offloads::CHECKSUM),
        ("mtu_sized_without_offloads", Offloads::NONE, Offloads::NONE),
        ("super_packets_that_the_host_cuts", Offloads::SUPER_PACKETS, Offloads::NONE),
    ];
    let mut trials = Vec::new();
    for (family_name, families) in FAMILIES {
        for (tags_name, tags) in &tags {
            for (size_name, from_client, to_vm) in sizes {
                let tags = tags.clone();
                trials.push(trial(
                    format!("matrix::{family_name}_{tags_name}_{size_name}"),
                    move || form(families, tags, from_client, to_vm),
                ));
            }
        }
    }
    trials
}

fn form(
    families: &'static [Family],
    tags: Vec<Tag>,
    from_client: Offloads,
    to_vm: Offloads,
) -> anyhow::Result<()> {
    let base = Case::default();
    // A super-packet that the stack cuts behind the hook must be left to the VM; what fits into one
    // frame need not.
    let cut = from_client.tso && !to_vm.tso;
    let case = Case {
        topology: TopologyOptions {
            network: !tags.is_empty(),
            tags,
            from_client,
            to_vm,
            from_vm: to_vm,
            ..base.topology.clone()
        },
        families,
        early: if cut { Early::Any } else { Early::Yes },
        ..base
    };
    let all_bytes = case.plan.to_vm_bytes * case.streams().len() as u64;
    case.run_and(|topology, attached, _| {
        let counters = topology.guest().counters(Direction::LeftToRight);
        ensure!(counters.untagged == 0, "frames with other tags: {counters:?}");
        ensure!(
            (counters.super_packets > 0) == (from_client.tso && !cut),
            "super-packets in another case than meant: {counters:?}"
        );
        if attached::is_wanted() && !cut {
            // Not only the few small frames of each stream.
            let early_bytes = attached.counter("early_bytes")?;
            ensure!(early_bytes > all_bytes / 10, "only {early_bytes} bytes acknowledged early");
            ensure!(attached.counter("not_exact")? == 0, "a hand-over was thought to be inexact");
        }
        Ok(())
    })
}
