//! The VM moves away from its tap while the host holds data for it: the bond of a guest fails over
//! to another card, another VM takes its address, or it is at another host by now. The bridge
//! learns the Ethernet address at another port, or hears who announces the IP address.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use socket2::{Domain, SockAddr, Socket, Type};
use vsnoop_packet::format::Tag;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::net::{Net, Netns, Offloads, TapOptions, check, mac_text};
use vsnoop_testbed::relay::{Freeze, Relay, RelayOptions};
use vsnoop_testbed::topology::{
    BRIDGE, CLIENT_DEVICE, CLIENT_MAC, Family, PORT, Side, Topology, UPLINK, VM_DEVICE, VM_MAC,
    address,
};
use vsnoop_testbed::wait::wait_until;
use vsnoop_tests::PREFIX;

use crate::attached::Attached;
use crate::pair::Pair;
use crate::scene;
use crate::trial;

/// The other port of the bridge, and the card behind it.
pub const OTHER_PORT: &str = "vst-other";
const OTHER_CARD: &str = "vst-card";
/// The Ethernet address of another VM.
pub const OTHER_MAC: [u8; 6] = [2, 0x76, 0x73, 0, 0, 3];

pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("moves::a_bond_that_fails_over_gets_what_is_held", fail_over),
        trial(
            "moves::a_bond_that_fails_over_without_a_word_is_reset_and_the_next_one_works",
            silent,
        ),
        trial("moves::a_bond_that_fails_over_to_an_attached_tap_gets_what_is_held", || {
            fail_over_to_a_tap(&[])
        }),
        trial("moves::a_bond_that_fails_over_within_a_vlan_gets_what_is_held", || {
            fail_over_to_a_tap(&[Tag::customer(7)])
        }),
        trial("moves::another_vm_that_takes_the_address_resets_the_sender", taken_over),
        trial("moves::an_ip_address_that_another_vm_takes_is_reset_at_both_ends", || {
            ip_taken_over(Family::V4)
        }),
        trial("moves::an_ipv6_address_that_another_vm_takes_is_reset_at_both_ends", || {
            ip_taken_over(Family::V6)
        }),
        trial("moves::a_vm_that_announces_its_address_beside_another_is_not_reset", contested),
        trial("moves::a_vm_with_another_ethernet_address_is_reset_at_both_ends", another_mac),
        trial("moves::a_vm_that_moves_within_a_vlan_is_reset_and_the_next_one_works", in_a_vlan),
        trial("moves::a_vm_that_is_now_where_its_sender_is_is_reset_and_sent_nothing", migrated),
    ]
}

/// A card of this guest is the only one that the bridge knows with the VM's address.
fn take_the_address(topology: &Topology, guest: &Netns) -> Result<()> {
    topology.host.veth_port(BRIDGE, OTHER_PORT, guest, OTHER_CARD)?;
    give_the_address(guest)
}

fn give_the_address(guest: &Netns) -> Result<()> {
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

/// Echo requests by the other card, until one is answered.
fn ping_client(guest: &Netns) -> Result<()> {
    let client = address(Side::Client, Family::V4);
    wait_until("the client answers", PATIENCE, || Ok(guest.ping(client, 1).is_ok()))
}

/// The bridge learns where the address is, as from the frames with which a bond announces it.
fn announce(topology: &Topology, guest: &Netns) -> Result<()> {
    ping_client(guest)?;
    let entries = learned_addresses(topology)?;
    ensure!(entries.contains(&format!("dev {OTHER_PORT}")), "not learned: {entries}");
    Ok(())
}

/// The bridge's forwarding database.
fn learned_addresses(topology: &Topology) -> Result<String> {
    let entries = topology.host.command("bridge").args(["fdb", "show", "br", BRIDGE]).output()?;
    Ok(String::from_utf8_lossy(&entries.stdout).into_owned())
}

pub fn move_to_the_other_card(topology: &Topology) -> Result<()> {
    topology.vm.ip("link set vst-vm down")?;
    take_the_address(topology, &topology.vm)?;
    announce(topology, &topology.vm)
}

/// Requires that the held bytes arrive, and that the connection goes on, both ways.
fn goes_on_by_the_other_card(
    topology: &Topology,
    attached: &Attached<'_>,
    pair: &mut Pair,
) -> Result<()> {
    pair.vm.receive(scene::BYTES).with_context(|| attached.describe())?;
    pair.client.send(scene::BYTES)?;
    pair.vm.receive(scene::BYTES).with_context(|| attached.describe())?;
    pair.vm.send(1000)?;
    pair.client.receive(1000)?;
    attached.until_nothing_is_outstanding()?;
    attached.ensure_no_reset()?;
    topology.guest().set_freeze(Freeze::Never);
    Ok(())
}

/// The RST has not taught the bridge that the VM is behind its tap.
pub fn the_next_one_works(topology: &Topology) -> Result<()> {
    let mut next = Pair::connect(topology, Family::V4)?;
    next.client.send(1000)?;
    next.vm.receive(1000)
}

fn fail_over() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    move_to_the_other_card(&topology)?;
    goes_on_by_the_other_card(&topology, &attached, &mut pair)?;
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
    the_next_one_works(&topology)?;
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

/// The other card is behind a tap of its own, which is attached, too; in a VLAN if there are tags.
fn fail_over_to_a_tap(tags: &[Tag]) -> Result<()> {
    let mut case = scene::still();
    (case.topology.tags, case.topology.network) = (tags.to_vec(), !tags.is_empty());
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let tap = topology.host.tap(OTHER_PORT, &super_packets())?;
    let card = topology.vm.tap(OTHER_CARD, &super_packets())?;
    let options = RelayOptions { left_tags: tags.to_vec(), ..RelayOptions::default() };
    let relay = Relay::start(vec![tap], card, &options)?;
    topology.host.add_port(BRIDGE, OTHER_PORT)?;
    attached.run(&["attach", OTHER_PORT])?;

    let mut pair = scene::held(&topology, &attached)?;
    topology.vm.ip("link set vst-vm down")?;
    give_the_address(&topology.vm)?;
    ping_client(&topology.vm)?;
    goes_on_by_the_other_card(&topology, &attached, &mut pair)?;
    attached.run(&["detach", OTHER_PORT])?;
    attached.detach()?;
    drop(relay);
    Ok(())
}

fn super_packets() -> TapOptions {
    TapOptions { offloads: Offloads::SUPER_PACKETS, ..TapOptions::default() }
}

/// All ports give their frames to a VLAN, of which the bridge itself is no member.
fn filter_vlans(topology: &Topology) -> Result<()> {
    topology.host.ip(&format!("link set {BRIDGE} type bridge vlan_filtering 1"))?;
    for port in [UPLINK, PORT, OTHER_PORT] {
        let bridge = |arguments: &[&str]| {
            let mut command = topology.host.command("bridge");
            check(command.arg("vlan").args(arguments))
        };
        bridge(&["del", "dev", port, "vid", "1"])?;
        bridge(&["add", "dev", port, "vid", "10", "pvid", "untagged"])?;
    }
    Ok(())
}

fn in_a_vlan() -> Result<()> {
    let topology = scene::still().build()?;
    if topology.host.ip("link add vst-filters type bridge vlan_filtering 1").is_err() {
        // Set by dev/tests/kernels, whose kernels can.
        ensure!(std::env::var_os("VSNOOP_FILTERS_VLANS").is_none(), "no bridge filters VLANs");
        eprintln!("skipped: bridges of this kernel filter no VLANs");
        return Ok(());
    }
    topology.host.veth_port(BRIDGE, OTHER_PORT, &topology.vm, OTHER_CARD)?;
    filter_vlans(&topology)?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    topology.vm.ip("link set vst-vm down")?;
    give_the_address(&topology.vm)?;
    announce(&topology, &topology.vm)?;
    pair.client.expect_reset().with_context(|| attached.describe())?;
    ensure!(attached.resets("moved")? == 1, "not counted\n{}", attached.describe());
    the_next_one_works(&topology)?;
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

/// Another VM has the IP address of the VM, and an Ethernet address of its own, which it announces
/// as keepalived does.
pub fn other_vm(topology: &Topology, family: Family) -> Result<Netns> {
    let other = Net::new(PREFIX).host("other")?;
    topology.host.veth_port(BRIDGE, OTHER_PORT, &other, OTHER_CARD)?;
    other.set_mac(OTHER_CARD, OTHER_MAC)?;
    other.up(OTHER_CARD)?;
    let announce =
        || other.run(|| send_frame(OTHER_CARD, &announcement(address(Side::Vm, family))));
    wait_until("the bridge knows it", PATIENCE, || {
        announce()?;
        learned(topology, OTHER_MAC, OTHER_PORT)
    })?;
    // The port may have dropped that one, as it was not up yet, and the bridge have learned the
    // address from a frame of the card's kernel.
    announce()?;
    Ok(other)
}

/// Gratuitous ARP, or an unsolicited neighbour advertisement.
pub fn announcement(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => {
            let ethernet = [&[0xff; 6][..], &OTHER_MAC, &[8, 6]].concat();
            let request = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &OTHER_MAC, &address.octets()].concat();
            [ethernet, request, vec![0; 6], address.octets().to_vec(), vec![0; 18]].concat()
        }
        IpAddr::V6(address) => {
            let ethernet = [&[0x33, 0x33, 0, 0, 0, 1][..], &OTHER_MAC, &[0x86, 0xdd]].concat();
            let to_all = [&[0xff, 2][..], &[0; 13], &[1]].concat();
            let ip = [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &address.octets(), &to_all].concat();
            let icmp = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &address.octets()].concat();
            [ethernet, ip, icmp, [&[2, 1][..], &OTHER_MAC].concat()].concat()
        }
    }
}

pub fn learned(topology: &Topology, mac: [u8; 6], port: &str) -> Result<bool> {
    Ok(learned_addresses(topology)?.contains(&format!("{} dev {port}", mac_text(mac))))
}

/// The VM stands still, and the client waits: it has nothing to send to the other VM.
fn ip_taken_over(family: Family) -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held_over(&topology, &attached, family)?;
    let _other = other_vm(&topology, family)?;
    pair.client.expect_reset().with_context(|| attached.describe())?;
    ensure!(attached.resets("moved")? == 1, "not counted\n{}", attached.describe());
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.expect_reset().context("the VM")?;
    attached.detach()
}

/// The VM says so, and its sender believes it. What is held has the address of before.
fn another_mac() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    let vm = address(Side::Vm, Family::V4);
    topology.vm.set_mac(VM_DEVICE, OTHER_MAC)?;
    topology.client.add_neighbour(CLIENT_DEVICE, vm, OTHER_MAC)?;
    topology.guest().set_freeze(Freeze::Never);
    topology.vm.run(|| send_frame(VM_DEVICE, &announcement(vm)))?;
    pair.client.expect_reset().with_context(|| attached.describe())?;
    ensure!(attached.resets("moved")? == 1, "not counted\n{}", attached.describe());
    pair.vm.expect_reset().context("the VM")?;
    attached.detach()
}

/// The VM answers, though another one has its address, too.
fn contested() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    let _other = other_vm(&topology, Family::V4)?;
    // Some looks of the engine.
    std::thread::sleep(Duration::from_secs(3));
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(scene::BYTES).with_context(|| attached.describe())?;
    attached.until_nothing_is_outstanding()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// A frame with the VM's address comes from the network, as if from another host. No frame with the
/// sender's address may leave there: switches would look for the sender at this host.
fn migrated() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    let capture = Capture::start(&topology.client)?;
    let port = pair.client.socket.local_addr()?.port();
    let frame = [&[0xff; 6][..], &VM_MAC, &[0x88, 0xb5], &[0; 46]].concat();
    topology.client.run(|| send_frame(CLIENT_DEVICE, &frame))?;
    wait_until("the bridge knows it", PATIENCE, || learned(&topology, VM_MAC, UPLINK))?;
    pair.client.expect_reset().with_context(|| attached.describe())?;
    ensure!(attached.resets("moved")? == 1, "not counted\n{}", attached.describe());
    let came = capture.take()?.into_iter().filter(|segment| !segment.outgoing);
    // The RST to the VM has the bridge's address.
    let of_sender: Vec<_> = came.filter(|it| it.source_port == port && !it.rst).collect();
    ensure!(of_sender.is_empty(), "sent back to where the sender is: {of_sender:?}");
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

pub fn send_frame(device: &str, frame: &[u8]) -> Result<()> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    let index = nix::net::if_::if_nametoindex(device)?;
    // SAFETY: a sockaddr_ll is written into the zeroed storage, with its length.
    let ((), to) = unsafe {
        SockAddr::try_init(|storage, length| {
            let address = storage.cast::<libc::sockaddr_ll>();
            (*address).sll_family = libc::AF_PACKET as u16;
            (*address).sll_ifindex = index as i32;
            *length = size_of::<libc::sockaddr_ll>() as u32;
            Ok(())
        })
    }?;
    socket.send_to(frame, &to).context("send a frame")?;
    Ok(())
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
