//! Routes that differ by direction: the sender's segments come from another MAC address than the
//! one that the VM sends to, as with direct server return or a pair of routers.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{
    CLIENT_DEVICE, Family, Side, Topology, TopologyOptions, VM_MAC, address,
};

use crate::attached::{self, Attached};
use crate::case::Case;
use crate::pair::Pair;
use crate::trial;

/// The interface at which segments of the client arrive; its other end is the client's.
const FORTH: &str = "vst-forth";
const CLIENT_FORTH: &str = "vst-client2";
const FORTH_MAC: [u8; 6] = [2, 0x76, 0x73, 0, 0, 0x77];
const BYTES: u64 = 1_000_000;
/// Least size of a frame without payload.
const ACK_BYTES: u64 = 54;

pub fn trials() -> Vec<Trial> {
    let sizes = [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)];
    sizes
        .map(|(size, offloads)| {
            trial(
                format!("next_hop::acknowledgements_take_the_vms_own_way_back_{size}"),
                move || asymmetric(offloads),
            )
        })
        .into()
}

fn asymmetric(offloads: Offloads) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        freezes: &[Freeze::Never],
        ..base
    };
    let topology = case.build()?;
    send_another_way(&topology)?;
    let mut attached = Attached::new(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    let before = topology.host.sent_bytes(FORTH)?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    let early_acks = attached.counter("early_acks")?;
    let astray = topology.host.sent_bytes(FORTH)? - before;
    // The bridge floods a multicast now and then.
    ensure!(early_acks > 20, "only {early_acks} early acknowledgements");
    ensure!(
        astray < early_acks * ACK_BYTES / 4,
        "{astray} bytes went back by the way that the segments came"
    );
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// Makes the client send to the VM by a second interface; the VM answers to the first.
fn send_another_way(topology: &Topology) -> Result<()> {
    topology.add_way(FORTH, CLIENT_FORTH, FORTH_MAC)?;
    let client = &topology.client;
    for interface in ["all", "default", CLIENT_FORTH, CLIENT_DEVICE] {
        client.set_sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0")?;
    }
    let vm = address(Side::Vm, Family::V4);
    let own = address(Side::Client, Family::V4);
    client.ip(&format!("route add {vm}/32 dev {CLIENT_FORTH} src {own}"))?;
    client.add_neighbour(CLIENT_FORTH, vm, VM_MAC)
}
