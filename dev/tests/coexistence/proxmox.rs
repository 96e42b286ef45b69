//! The bridges of a VM with Proxmox' firewall, and iptables with connection tracking on them by
//! br_netfilter:
//!
//! ```text
//! uplink - vmbr [fwpr] <-- veth --> [fwln] fwbr - tap
//! ```

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::guest::installed;
use vsnoop_testbed::net::{Netns, mac_text};
use vsnoop_testbed::topology::{BRIDGE, Family, PORT, Topology, VM_MAC};

use crate::scene::{FAMILIES, Scene, network, run};
use crate::trial;

const FIREWALL_BRIDGE: &str = "fwbr100i0";
const BRIDGE_SIDE: &str = "fwpr100p0";
const VM_SIDE: &str = "fwln100i0";

pub fn trials() -> Vec<Trial> {
    FAMILIES
        .map(|(name, family)| {
            trial(
                format!("proxmox::connection_tracking_takes_no_early_ack_for_invalid_{name}"),
                move || tracked(family),
            )
        })
        .into()
}

pub fn probe(netns: &Netns) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let tables = tables(family);
        installed(tables, "iptables")?;
        netns
            .set_sysctl(&format!("net.bridge.bridge-nf-call-{tables}"), "1")
            .context("this kernel has no br_netfilter")?;
        firewall(netns, family)?;
    }
    Ok(())
}

fn tables(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Puts the tap behind a bridge of its own.
fn rebuild(topology: &Topology) -> Result<()> {
    let host = &topology.host;
    host.ip(&format!("link set {PORT} nomaster"))?;
    host.bridge(FIREWALL_BRIDGE)?;
    host.veth(BRIDGE_SIDE, host, VM_SIDE)?;
    host.add_port(BRIDGE, BRIDGE_SIDE)?;
    host.add_port(FIREWALL_BRIDGE, VM_SIDE)?;
    host.add_port(FIREWALL_BRIDGE, PORT)
}

/// The chains of pve-firewall for a VM whose policy is to drop what comes in, with a rule that lets
/// TCP in and a filter of MAC addresses.
fn firewall(host: &Netns, family: Family) -> Result<()> {
    let tables = tables(family);
    host.set_sysctl(&format!("net.bridge.bridge-nf-call-{tables}"), "1")?;
    for chain in ["PVEFW-FORWARD", "PVEFW-FWBR-IN", "PVEFW-FWBR-OUT", "tap-IN", "tap-OUT"] {
        run(host, tables, &format!("-N {chain}"))?;
    }
    let bridged = "-m physdev --physdev-is-bridged";
    for rule in [
        "FORWARD -j PVEFW-FORWARD".to_owned(),
        "PVEFW-FORWARD -m conntrack --ctstate INVALID -j DROP".into(),
        "PVEFW-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".into(),
        format!("PVEFW-FORWARD {bridged} --physdev-in fwln+ -j PVEFW-FWBR-IN"),
        format!("PVEFW-FORWARD {bridged} --physdev-out fwln+ -j PVEFW-FWBR-OUT"),
        format!("PVEFW-FWBR-IN {bridged} --physdev-out {PORT} -j tap-IN"),
        format!("PVEFW-FWBR-OUT {bridged} --physdev-in {PORT} -j tap-OUT"),
        "tap-IN -p tcp -j ACCEPT".into(),
        "tap-IN -j DROP".into(),
        format!("tap-OUT -m mac ! --mac-source {} -j DROP", mac_text(VM_MAC)),
    ] {
        run(host, tables, &format!("-A {rule}"))?;
    }
    Ok(())
}

/// Packets that met the first rule of this chain which has these words.
fn packets(host: &Netns, family: Family, chain: &str, words: &str) -> Result<u64> {
    let text = run(host, tables(family), &format!("-v -S {chain}"))?;
    let rule = text.lines().find(|line| line.contains(words));
    let counted = rule.and_then(|rule| rule.split_once(" -c "));
    let counted = counted.and_then(|(_, counters)| counters.split(' ').next());
    Ok(counted.with_context(|| format!("no rule {words}: {text}"))?.parse()?)
}

fn tracked(family: Family) -> Result<()> {
    let topology = network(|_| ())?;
    rebuild(&topology)?;
    let host = &topology.host;
    firewall(host, family)?;
    let mut scene = Scene::new(&topology, family)?;
    let established = || packets(host, family, "PVEFW-FORWARD", "ESTABLISHED");
    let (before, early_before) = (established()?, scene.attached.counter("early_acks")?);
    scene.upload()?;
    scene.download()?;
    let passed = established()? - before;
    let early = scene.attached.counter("early_acks")? - early_before;
    ensure!(passed >= early, "{early} early ACKs, and {passed} packets were of a connection");
    let invalid = packets(host, family, "PVEFW-FORWARD", "INVALID")?;
    ensure!(invalid == 0, "{invalid} packets were taken for invalid");
    let accepted = packets(host, family, "tap-IN", "-p tcp")?;
    ensure!(accepted > 0, "no connection has met the VM's own rules");
    scene.detach()
}
