//! The VM moves away from its tap while the host holds data for it: the bond of a guest fails over
//! to another card, or another VM takes its address. The bridge learns the address at another port.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::{Net, Netns};
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{BRIDGE, CLIENT_MAC, Family, Side, Topology, VM_MAC, address};
use vsnoop_tests::PREFIX;

use crate::pair::Pair;
use crate::scene;
use crate::trial;

/// The other port of the bridge, and the card behind it.
const OTHER_PORT: &str = "vst-other";
const OTHER_CARD: &str = "vst-card";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("moves::a_bond_that_fails_over_gets_what_is_held", fail_over),
        trial(
            "moves::a_bond_that_fails_over_without_a_word_is_reset_and_the_next_one_works",
            silent,
        ),
        trial("moves::another_vm_that_takes_the_address_resets_the_sender", taken_over),
    ]
}

/// A card of this guest is the only one that the bridge knows with the VM's address.
fn take_the_address(topology: &Topology, guest: &Netns) -> Result<()> {
    topology.host.veth_port(BRIDGE, OTHER_PORT, guest, OTHER_CARD)?;
    guest.set_mac(OTHER_CARD, VM_MAC)?;
    let families = [(Family::V4, 24), (Family::V6, 64)];
    guest.up_with(
        OTHER_CARD,
        &families.map(|(family, length)| (address(Side::Vm, family), length)),
    )?;
    for (family, _) in families {
        guest.add_neighbour(OTHER_CARD, address(Side::Client, family), CLIENT_MAC)?;
    }
    Ok(())
}

/// The bridge learns where the address is, as from the frames with which a bond announces it.
fn announce(topology: &Topology, guest: &Netns) -> Result<()> {
    guest.ping(address(Side::Client, Family::V4), 1)?;
    let entry = topology.host.command("bridge").args(["fdb", "show", "br", BRIDGE]).output()?;
    let entries = String::from_utf8_lossy(&entry.stdout).into_owned();
    ensure!(entries.contains(&format!("dev {OTHER_PORT}")), "not learned: {entries}");
    Ok(())
}

fn move_to_the_other_card(topology: &Topology) -> Result<()> {
    topology.vm.ip("link set vst-vm down")?;
    take_the_address(topology, &topology.vm)?;
    announce(topology, &topology.vm)
}

fn fail_over() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    move_to_the_other_card(&topology)?;
    pair.vm.receive(scene::BYTES).with_context(|| attached.describe())?;
    // The connection goes on by the other card, both ways.
    pair.client.send(scene::BYTES)?;
    pair.vm.receive(scene::BYTES).with_context(|| attached.describe())?;
    pair.vm.send(1000)?;
    pair.client.receive(1000)?;
    attached.until_nothing_is_outstanding()?;
    attached.ensure_no_reset()?;
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

/// The other card sends one frame, and then drops what comes.
fn silent() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    move_to_the_other_card(&topology)?;
    topology.vm.nft(
        "add table inet vst; \
         add chain inet vst drops { type filter hook input priority 0; }; \
         add rule inet vst drops tcp flags ack drop",
    )?;
    pair.client.expect_reset().with_context(|| attached.describe())?;
    ensure!(attached.resets("moved")? == 1, "not counted\n{}", attached.describe());
    topology.vm.nft("delete table inet vst")?;
    // The RST has not taught the bridge that the VM is behind its tap.
    let mut next = Pair::connect(&topology, Family::V4)?;
    next.client.send(1000)?;
    next.vm.receive(1000)?;
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

/// It has no connection, and answers the first segment with RST.
fn taken_over() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    let other = Net::new(PREFIX).host("other")?;
    take_the_address(&topology, &other)?;
    announce(&topology, &other)?;
    pair.client.expect_reset().with_context(|| attached.describe())
}
