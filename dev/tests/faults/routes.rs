//! Senders whose segments go up the stack of the VM's host: the host itself, networks that it
//! routes, and networks towards which it translates addresses. They are reset where a bridge that
//! forwards cannot reach them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::{Net, Netns};
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{BRIDGE, Family, PORT, Side, Topology, address};
use vsnoop_tests::PREFIX;

use crate::attached::Attached;
use crate::background::Process::Helper;
use crate::pair::{End, Pair};
use crate::scene;
use crate::trial;

/// The host's device towards another network, and the device at its far end.
const LEG: &str = "vst-leg";
const FAR_DEVICE: &str = "vst-far";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (end, end_name) in [(VmEnd::Killed, "a_killed_vm"), (VmEnd::TapDeleted, "a_deleted_tap")] {
        for (sender, name) in [
            (Sender::Host(Family::V4), "the_host_itself_v4"),
            (Sender::Host(Family::V6), "the_host_itself_v6"),
            (Sender::Routed(Family::V4), "a_routed_network_v4"),
            (Sender::Routed(Family::V6), "a_routed_network_v6"),
            (Sender::Translated, "behind_a_masquerade"),
            (Sender::BesideNoBridge(Family::V4), "without_a_bridge_v4"),
            (Sender::BesideNoBridge(Family::V6), "without_a_bridge_v6"),
        ] {
            let name = format!("routes::{end_name}_resets_its_sender_{name}");
            trials.push(trial(&name, move || is_reset(sender, end)));
        }
    }
    trials
}

/// Who has sent the bytes that are held.
#[derive(Clone, Copy)]
enum Sender {
    /// A socket of the host with an address on the bridge.
    Host(Family),
    /// Behind the host, which routes.
    Routed(Family),
    /// It is behind the host, which routes; the VM has connected to it with the host's address.
    Translated,
    /// Its tap is a port of no bridge. The host, or once the tap is deleted, and with it the host's
    /// own address there, a network that the host routes.
    BesideNoBridge(Family),
}

/// The event that ends the VM.
#[derive(Clone, Copy)]
enum VmEnd {
    /// No process reads the tap, which is persistent.
    Killed,
    TapDeleted,
}

/// The host's address towards the VM.
fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 118, 115, 3).into(),
        Family::V6 => Ipv6Addr::new(0xfd76, 0x7300, 0, 0, 0, 0, 0, 3).into(),
    }
}

/// An address of the other network: 1 is the far end, 2 the host.
fn far(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 118, 116, number).into(),
        Family::V6 => Ipv6Addr::new(0xfd76, 0x7301, 0, 0, 0, 0, 0, number.into()).into(),
    }
}

const FAMILIES: [(Family, u8); 2] = [(Family::V4, 24), (Family::V6, 64)];

fn is_reset(sender: Sender, end: VmEnd) -> Result<()> {
    let topology = scene::still().build()?;
    let has_bridge = !matches!(sender, Sender::BesideNoBridge(_));
    let far = set_up(&topology, has_bridge)?;
    let attached = Attached::with(&topology, Some("16M"), &[])?;
    let connect = || -> Result<(End, End)> {
        let Topology { host, vm, .. } = &topology;
        let at = |family| address(Side::Vm, family);
        let pair = match sender {
            Sender::BesideNoBridge(family) if matches!(end, VmEnd::TapDeleted) => {
                Pair::between(&far, vm, at(family), None)?
            }
            Sender::Host(family) | Sender::BesideNoBridge(family) => {
                Pair::between(host, vm, at(family), None)?
            }
            Sender::Routed(family) => Pair::between(&far, vm, at(family), None)?,
            Sender::Translated => {
                let Pair { client, vm } = Pair::between(vm, &far, self::far(Family::V4, 1), None)?;
                return Ok((vm, client));
            }
        };
        Ok((pair.client, pair.vm))
    };
    until_it_holds(&attached, &connect)?;
    let (mut sender, _vm) = connect()?;
    topology.guest().set_freeze(Freeze::Now);
    sender.send(scene::BYTES).with_context(|| attached.describe())?;
    sender.until_acknowledged().with_context(|| attached.describe())?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > scene::BYTES / 2, "only {held} bytes are held\n{}", attached.describe());
    expect_reset_after(&topology, attached, sender, end)
}

/// The host has addresses on the bridge, or on the tap, and forwards to a network of its own.
fn set_up(topology: &Topology, has_bridge: bool) -> Result<Netns> {
    let Topology { host, vm, .. } = topology;
    host.set_sysctl("net.ipv6.conf.all.disable_ipv6", "0")?;
    host.set_forwarding(true)?;
    let inside = if has_bridge { BRIDGE } else { PORT };
    if !has_bridge {
        host.ip(&format!("link set {PORT} nomaster"))?;
    }
    host.up_with(inside, &FAMILIES.map(|(family, length)| (gateway(family), length)))?;
    let net = Net::new(PREFIX);
    let far = net.host("far")?;
    host.veth(LEG, &far, FAR_DEVICE)?;
    host.up_with(LEG, &FAMILIES.map(|(family, length)| (self::far(family, 2), length)))?;
    far.up_with(FAR_DEVICE, &FAMILIES.map(|(family, length)| (self::far(family, 1), length)))?;
    for (family, _) in FAMILIES {
        let version = if family == Family::V4 { "" } else { "-6 " };
        vm.ip(&format!("{version}route add default via {}", gateway(family)))?;
        far.ip(&format!("{version}route add default via {}", self::far(family, 2)))?;
    }
    host.nft(&format!(
        "add table ip vst; \
         add chain ip vst out {{ type nat hook postrouting priority 100; }}; \
         add rule ip vst out ct direction original oifname \"{LEG}\" masquerade"
    ))?;
    Ok(far)
}

/// Memory for copies comes with the first connections.
fn until_it_holds(
    attached: &Attached<'_>,
    connect: &impl Fn() -> Result<(End, End)>,
) -> Result<()> {
    const BYTES: u64 = 1000;
    attached.wait_until("the host acknowledges early", || {
        let (mut sender, mut vm) = connect()?;
        sender.send(BYTES)?;
        vm.receive(BYTES)?;
        vm.finish()?;
        sender.expect_end()?;
        sender.finish()?;
        vm.expect_end()?;
        Ok(attached.counter("early_acks")? > 0)
    })
}

fn expect_reset_after(
    topology: &Topology,
    mut attached: Attached<'_>,
    mut sender: End,
    end: VmEnd,
) -> Result<()> {
    match end {
        VmEnd::Killed => {
            topology.host.ip(&format!("link set {PORT} carrier off"))?;
            sender.expect_reset().with_context(|| attached.describe())?;
            ensure!(attached.resets("no_reader")? == 1, "{}", attached.describe());
            ensure!(attached.resets("unsent")? == 0, "{}", attached.describe());
            topology.host.ip(&format!("link set {PORT} carrier on"))?;
            attached.detach()
        }
        VmEnd::TapDeleted => {
            // The helper may not be there yet after another test of this host.
            Helper.next(None)?;
            topology.host.delete(PORT)?;
            attached.forget();
            sender.expect_reset().context("the sender")
        }
    }
}
