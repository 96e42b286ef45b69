//! Diversion between two hosts: what VMs send to each other goes through a link, or its ordinary
//! way, and no connection can tell.

mod early;
mod hosts;
mod link;
mod switched;

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use libtest_mimic::Trial;
use vsnoop_divert::{Action, Rule, prepare_tap};
use vsnoop_testbed::hosts::{Layout, Network};
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::{Tap, TapOptions};
use vsnoop_testbed::topology::Family;

use hosts::{LINK_TAP, build};
use link::{Link, inside, rules};

use crate::pair::Pair;
use crate::{FAMILIES, trial};

pub use link::serve;

/// Enough for many super-packets.
const BYTES: u64 = 2_000_000;
/// The longest invalid frame, bytes.
const ORDINARY_FRAME_BYTES: u64 = 1514;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("divert::other_destinations_go_their_ordinary_way", other_destinations),
        trial("divert::datagrams_in_fragments_come_whole", fragments),
        trial("divert::the_host_beside_a_vm_cannot_be_reached_through_a_link", the_host_itself),
        trial("divert::a_host_that_filters_by_reverse_path_is_refused", reverse_path_filter),
        trial("divert::preparing_a_tap_again_repairs_it", prepared_again),
    ];
    for (name, families) in FAMILIES {
        for (way, layout) in [("bridged", Layout::Bridged), ("routed", Layout::RoutedBridge)] {
            trials.push(trial(format!("divert::{name}_between_{way}_hosts"), move || {
                families.iter().try_for_each(|family| through_the_link(layout, *family))
            }));
        }
    }
    trials.extend(switched::trials());
    trials.extend(early::trials());
    trials
}

/// A connection of VM 0 to VM 1.
fn connect(hosts: &Network, family: Family) -> Result<Pair> {
    let [client, vm] = [0, 1].map(|number| &*hosts.hosts[number].vms[0]);
    Pair::between(client, vm, hosts.vm_address(1, family), None)
        .with_context(|| format!("{family:?}"))
}

/// Exchanges `bytes` bytes both ways at once, and verifies all of them.
fn exchange(pair: &mut Pair, bytes: u64) -> Result<()> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for end in [&mut pair.client, &mut pair.vm] {
            let mut writer = end.twin()?;
            threads.push(scope.spawn(move || writer.send(bytes).map(|()| writer)));
        }
        let receivers = [&mut pair.client, &mut pair.vm]
            .map(|end| scope.spawn(move || end.receive(bytes).map(|()| end)));
        for (receiver, writer) in receivers.into_iter().zip(threads) {
            let end = receiver.join().expect("no panic").context("receiving")?;
            end.take_over(&writer.join().expect("no panic").context("sending")?);
        }
        Ok(())
    })
}

fn through_the_link(layout: Layout, family: Family) -> Result<()> {
    let hosts = build(layout)?;
    let link = Link::start(&hosts)?;
    let mut pair = connect(&hosts, family)?;
    exchange(&mut pair, BYTES)?;
    ensure!(link.bytes() > 2 * BYTES, "only {} bytes went through the link", link.bytes());
    ensure!(link.largest() > ORDINARY_FRAME_BYTES, "super-packets were cut");
    for (diversion, frames) in link.diversions.iter().zip(link.frames()) {
        let diverted: u64 =
            diversion.read_counters()?.iter().map(|(_, counted)| counted.packets).sum();
        // The last packets may still be on their way.
        ensure!(diverted >= frames && frames > 0, "{diverted} diverted, {frames} carried");
    }
    Ok(())
}

/// A prefix that the VMs are in, with the VMs as exceptions; and prefixes that they are not in.
fn other_destinations() -> Result<()> {
    let hosts = build(Layout::Bridged)?;
    let link = Link::with(&hosts, |number| {
        let all = ["0.0.0.0/0", "::/0"].map(|text| text.parse::<IpNet>().expect("a prefix"));
        let divert = all.map(|prefix| Rule { prefix, action: Action::DivertOrDrop });
        [rules(&hosts, 1 - number, Action::Never), divert.to_vec()].concat()
    })?;
    for family in [Family::V4, Family::V6] {
        exchange(&mut connect(&hosts, family)?, BYTES)?;
    }
    ensure!(link.bytes() == 0, "{} bytes of the exceptions went through the link", link.bytes());
    Ok(())
}

fn fragments() -> Result<()> {
    const DATAGRAM_BYTES: usize = 5000;
    let hosts = build(Layout::Bridged)?;
    let link = Link::start(&hosts)?;
    for family in [Family::V4, Family::V6] {
        let at = hosts.vm_address(1, family);
        let receiver = hosts.hosts[1].vms[0].run(|| Ok(UdpSocket::bind((at, 0))?))?;
        receiver.set_read_timeout(Some(Duration::from_secs(120)))?;
        let to = receiver.local_addr()?;
        let from = hosts.vm_address(0, family);
        let sender = hosts.hosts[0].vms[0].run(|| Ok(UdpSocket::bind((from, 0))?))?;
        let datagram: Vec<u8> = (0..DATAGRAM_BYTES).map(|at| at as u8).collect();
        let before = link.frames()[0];
        sender.send_to(&datagram, to).with_context(|| format!("{family:?}"))?;
        let mut received = vec![0; 2 * DATAGRAM_BYTES];
        let length = restarted(|| receiver.recv(&mut received));
        let length = length.with_context(|| format!("{family:?}"))?;
        ensure!(received[..length] == datagram, "{family:?}: another datagram came");
        let frames = link.frames()[0] - before;
        ensure!(frames > 1, "{family:?}: {frames} frames");
    }
    Ok(())
}

/// Packets of a VM to the far host itself enter the link, by a rule that is too broad, and do not
/// leave it.
fn the_host_itself() -> Result<()> {
    let hosts = build(Layout::Bridged)?;
    let link = Link::with(&hosts, |_| {
        let prefix = "10.88.0.0/16".parse().expect("a prefix");
        vec![Rule { prefix, action: Action::DivertOrPass }]
    })?;
    let sender =
        hosts.hosts[0].vms[0].run(|| Ok(UdpSocket::bind((hosts.vm_address(0, Family::V4), 0))?))?;
    sender.send_to(b"hello", (hosts.host_address(1, Family::V4), 9))?;
    exchange(&mut connect(&hosts, Family::V4)?, 1000)?;
    ensure!(link.refused() == 1, "{} frames were refused", link.refused());
    Ok(())
}

fn reverse_path_filter() -> Result<()> {
    let hosts = build(Layout::Bridged)?;
    for filter in ["1", "2"] {
        hosts.hosts[0].netns.set_sysctl("net.ipv4.conf.all.rp_filter", filter)?;
        let error = match Link::start(&hosts) {
            Ok(_) => anyhow::bail!("rp_filter {filter} is taken"),
            Err(error) => format!("{error:#}"),
        };
        ensure!(error.contains(&format!("net.ipv4.conf.all.rp_filter is {filter}")), "{error}");
    }
    hosts.hosts[0].netns.set_sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    exchange(&mut connect(&hosts, Family::V4)?, 1000)
}

/// Another program configures the interfaces of a host anew, the link's among them.
fn prepared_again() -> Result<()> {
    let hosts = build(Layout::Bridged)?;
    let host = &hosts.hosts[0].netns;
    let _tap: Tap = host.tap(LINK_TAP, &TapOptions::default())?;
    let own = [Family::V4, Family::V6].map(|family| IpNet::from(hosts.vm_address(0, family)));
    let prepare = || inside(host.name(), || Ok(prepare_tap(LINK_TAP, 1400, &own)?));
    let first = prepare()?;
    for (key, value) in [("forwarding", "0"), ("rp_filter", "2")] {
        host.set_sysctl(&format!("net.ipv4.conf.{LINK_TAP}.{key}"), value)?;
    }
    ensure!(prepare()? == first, "another tap");
    for (key, value) in [("forwarding", "1"), ("rp_filter", "0")] {
        let now = host.sysctl(&format!("net.ipv4.conf.{LINK_TAP}.{key}"))?;
        ensure!(now == value, "{key} is {now}");
    }
    let link = host.ip(&format!("addr show {LINK_TAP}"))?;
    ensure!(link.contains("mtu 1400") && !link.contains("inet"), "{link}");
    Ok(())
}
