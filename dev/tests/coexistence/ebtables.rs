//! ebtables with the chains that libvirt's nwfilter makes of the filter `clean-traffic`: the VM may
//! send from its own MAC, IPv4 and ARP addresses only.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::guest::installed;
use vsnoop_testbed::net::{Netns, mac_text};
use vsnoop_testbed::topology::{CLIENT_MAC, Family, PORT, Side, VM_MAC, address};

use crate::scene::{BLOCKED_BYTES, Scene, network, run};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("ebtables::early_acks_pass_the_chains_of_clean_traffic", clean_traffic),
        trial("ebtables::what_the_vm_may_not_send_is_not_sent_for_it", spoofed),
    ]
}

pub fn probe(netns: &Netns) -> Result<()> {
    installed("ebtables", "iptables")?;
    filter(netns)
}

/// Adds the chains for the port, in the order of libvirt 9.0.
fn filter(host: &Netns) -> Result<()> {
    for chain in ["libvirt-I", "libvirt-O"].map(|side| format!("{side}-{PORT}")) {
        ebtables(host, &format!("-N {chain}"))?;
    }
    for part in ["mac", "ipv4-ip", "arp-mac", "arp-ip", "rarp"] {
        ebtables(host, &format!("-N I-{PORT}-{part}"))?;
    }
    for part in ["ipv4", "rarp"] {
        ebtables(host, &format!("-N O-{PORT}-{part}"))?;
    }
    let (mac, ip) = (mac_text(VM_MAC), address(Side::Vm, Family::V4));
    // QEMU sends this frame for a VM that has migrated.
    let announced = format!(
        "-d Broadcast --arp-op Request_Reverse --arp-ip-src 0.0.0.0 --arp-ip-dst 0.0.0.0 \
         --arp-mac-src {mac} --arp-mac-dst {mac}"
    );
    for rule in [
        format!("PREROUTING -i {PORT} -j libvirt-I-{PORT}"),
        format!("POSTROUTING -o {PORT} -j libvirt-O-{PORT}"),
        format!("libvirt-I-{PORT} -j I-{PORT}-mac"),
        format!("libvirt-I-{PORT} -p IPv4 -j I-{PORT}-ipv4-ip"),
        format!("libvirt-I-{PORT} -p IPv4 -j ACCEPT"),
        format!("libvirt-I-{PORT} -p ARP -j I-{PORT}-arp-mac"),
        format!("libvirt-I-{PORT} -p ARP -j I-{PORT}-arp-ip"),
        format!("libvirt-I-{PORT} -p ARP -j ACCEPT"),
        format!("libvirt-I-{PORT} -p RARP -j I-{PORT}-rarp"),
        format!("libvirt-I-{PORT} -p 0x835 -j ACCEPT"),
        format!("libvirt-I-{PORT} -j DROP"),
        format!("I-{PORT}-mac -s {mac} -j RETURN"),
        format!("I-{PORT}-mac -j DROP"),
        format!("I-{PORT}-ipv4-ip -p IPv4 --ip-src 0.0.0.0 --ip-proto udp -j RETURN"),
        format!("I-{PORT}-ipv4-ip -p IPv4 --ip-src {ip} -j RETURN"),
        format!("I-{PORT}-ipv4-ip -j DROP"),
        format!("I-{PORT}-arp-mac -p ARP --arp-mac-src {mac} -j RETURN"),
        format!("I-{PORT}-arp-mac -j DROP"),
        format!("I-{PORT}-arp-ip -p ARP --arp-ip-src {ip} -j RETURN"),
        format!("I-{PORT}-arp-ip -j DROP"),
        format!("I-{PORT}-rarp -p RARP -s {mac} {announced} -j ACCEPT"),
        format!("I-{PORT}-rarp -j DROP"),
        format!("libvirt-O-{PORT} -p IPv4 -j O-{PORT}-ipv4"),
        format!("libvirt-O-{PORT} -p ARP -j ACCEPT"),
        format!("libvirt-O-{PORT} -p RARP -j O-{PORT}-rarp"),
        format!("libvirt-O-{PORT} -j DROP"),
        format!("O-{PORT}-ipv4 -j ACCEPT"),
        format!("O-{PORT}-rarp -p RARP {announced} -j ACCEPT"),
        format!("O-{PORT}-rarp -j DROP"),
    ] {
        ebtables(host, &format!("-A {rule}"))?;
    }
    Ok(())
}

fn ebtables(host: &Netns, arguments: &str) -> Result<String> {
    run(host, "ebtables", &format!("-t nat {arguments}"))
}

/// Frames that met the rule of this chain which ends so.
pub fn frames(host: &Netns, chain: &str, rule: &str) -> Result<u64> {
    let text = ebtables(host, &format!("-L {chain} --Lc"))?;
    let counted = text.lines().find_map(|line| {
        let (found, counters) = line.split_once(", pcnt = ")?;
        found.trim().ends_with(rule).then_some(counters)
    });
    let counted = counted.and_then(|counters| counters.split(' ').next());
    Ok(counted.with_context(|| format!("no rule {rule}: {text}"))?.parse()?)
}

fn clean_traffic() -> Result<()> {
    let topology = network(|_| ())?;
    let host = &topology.host;
    filter(host)?;
    let mut scene = Scene::new(&topology, Family::V4)?;
    let chain = format!("I-{PORT}-ipv4-ip");
    let own = format!("--ip-src {} -j RETURN", address(Side::Vm, Family::V4));
    let before = frames(host, &chain, &own)?;
    let early_before = scene.attached.counter("early_acks")?;
    scene.upload()?;
    scene.download()?;
    let (passed, early) = (
        frames(host, &chain, &own)? - before,
        scene.attached.counter("early_acks")? - early_before,
    );
    ensure!(passed >= early, "{early} early ACKs, and {passed} frames passed the chain");
    for part in ["mac", "ipv4-ip", "arp-mac", "arp-ip"] {
        let dropped = frames(host, &format!("I-{PORT}-{part}"), "-j DROP")?;
        ensure!(dropped == 0, "{dropped} frames dropped: {part}");
    }
    scene.detach()
}

/// Early ACKs meet the rules for what the VM sends.
fn spoofed() -> Result<()> {
    let topology = network(|_| ())?;
    let host = &topology.host;
    filter(host)?;
    let mut scene = Scene::new(&topology, Family::V4)?;
    scene.upload()?;
    scene.stop_the_vm();
    let chain = format!("I-{PORT}-mac");
    let allow = |mac| ebtables(host, &format!("-I {chain} -s {mac} -j RETURN"));
    ebtables(host, &format!("-F {chain}"))?;
    ebtables(host, &format!("-A {chain} -s {} -j RETURN", mac_text(CLIENT_MAC)))?;
    ebtables(host, &format!("-A {chain} -j DROP"))?;
    scene.send_what_is_dropped(|| frames(host, &chain, "-j DROP"))?;
    allow(mac_text(VM_MAC))?;
    scene.is_acknowledged()?;
    scene.let_the_vm_run();
    scene.pair.vm.receive(BLOCKED_BYTES)?;
    scene.detach()
}
