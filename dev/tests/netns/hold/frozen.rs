//! The VM does not run, and its sender continues: everything is acknowledged far beyond the VM's
//! window, and the VM gets every byte in its next time slice.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_packet::format::Tag;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{Family, TopologyOptions};

use super::SIZE;
use crate::attached;
use crate::case::Case;
use crate::pair::Pair;
use crate::trial;

const MB: u64 = 1_000_000;
/// The first window of a Linux guest: the host hands over this many bytes at once, and holds the
/// rest.
const FIRST_WINDOW: u64 = 65_536;

pub fn trials() -> Vec<Trial> {
    let families = [("ipv4", Family::V4), ("ipv6", Family::V6)];
    let tags = [("untagged", vec![]), ("tagged", vec![Tag::customer(7)])];
    let sizes = [
        ("super_packets", Offloads::SUPER_PACKETS, Offloads::SUPER_PACKETS),
        ("mtu_sized", Offloads::NONE, Offloads::SUPER_PACKETS),
        ("mtu_sized_without_offloads", Offloads::NONE, Offloads::NONE),
        ("super_packets_that_the_host_cuts", Offloads::SUPER_PACKETS, Offloads::NONE),
    ];
    let mut trials = Vec::new();
    for (family_name, family) in families {
        for (tags_name, tags) in &tags {
            for (size_name, from_client, to_vm) in sizes {
                let scene = Scene { family, tags: tags.clone(), from_client, to_vm };
                let large = tags.is_empty() && from_client == to_vm;
                for (bytes, name) in [(MB, "1_mb"), (10 * MB, "10_mb")] {
                    if bytes > MB && !large {
                        continue;
                    }
                    let scene = scene.clone();
                    trials.push(trial(
                        format!("hold::frozen::{name}_{family_name}_{tags_name}_{size_name}"),
                        move || acknowledged(&scene, bytes),
                    ));
                }
            }
        }
    }
    trials
}

#[derive(Clone)]
struct Scene {
    family: Family,
    tags: Vec<Tag>,
    from_client: Offloads,
    to_vm: Offloads,
}

fn acknowledged(scene: &Scene, bytes: u64) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions {
            network: !scene.tags.is_empty(),
            tags: scene.tags.clone(),
            from_client: scene.from_client,
            to_vm: scene.to_vm,
            from_vm: scene.to_vm,
            ..base.topology.clone()
        },
        hold: Some(SIZE),
        freezes: &[Freeze::Never],
        ..base
    };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, scene.family)?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(bytes).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    let held = attached.hold("held_bytes")?;
    ensure!(held + FIRST_WINDOW >= bytes, "only {held} bytes are held\n{}", attached.describe());
    let used = attached.hold("used_bytes")?;
    ensure!(used >= bytes, "{used} bytes of memory for {bytes}");

    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(bytes).with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    ensure!(
        attached.hold("handovers")? > 0,
        "the engine handed over nothing\n{}",
        attached.describe()
    );
    // It lives on, both ways.
    pair.vm.send(10_000)?;
    pair.client.receive(10_000)?;
    pair.client.send(10_000)?;
    pair.vm.receive(10_000)?;
    attached.ensure_no_reset()?;
    attached.detach()
}
