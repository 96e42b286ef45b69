//! Hosts behind NATs and their hub, which introduces them: the direct path is taken and left.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_packet::packet::Pool;
use vsnoop_testbed::hosts::{EtcdOptions, Host, Nat, Network, Plan, inner_v4, outer, start_all};
use vsnoop_testbed::net::Tap;
use vsnoop_testbed::wait::wait_until;

use crate::raw_vm::{BROADCAST, OTHER, OWNER, PATIENCE, frame, introduce, raw_vm, receive, send};
use crate::{certificates, transfer, trial};

/// Bound of [`played`].
const ROUNDS: usize = 5;
/// `link.dead_after` where the hub is killed, and has to be missed.
const MISSED_AFTER: Option<&str> = Some("5s");

pub fn trials() -> Vec<Trial> {
    [
        ("two_behind_nats_take_a_direct_path_past_the_hub", past_the_hub as fn() -> Result<()>),
        ("one_behind_a_symmetric_nat_stays_relayed", stays_relayed),
        ("what_a_hub_relays_comes_to_the_pair_of_its_session", relayed_to_pairs),
        ("a_path_that_fails_in_mid_transfer_is_left_and_taken_again", fails),
        ("taking_the_direct_path_loses_and_doubles_no_frame", switches),
        ("a_broadcast_comes_once_by_the_hub_and_without_it", broadcasts),
        ("the_direct_path_outlives_the_hub", outlives),
        ("a_host_that_is_started_again_gets_a_direct_path_again", restarts),
        ("a_nat_that_binds_anew_is_followed", rebinds),
        ("via_comes_and_goes_with_a_reload", reloads),
        ("hosts_that_etcd_names_take_a_direct_path", of_etcd),
        ("hosts_with_certificates_take_a_direct_path", certified),
    ]
    .into_iter()
    .map(|(name, test)| trial(format!("direct::{name}"), test))
    .collect()
}

/// Plays a scene in a network of its own. It plays it anew if the scene fails and a direct path was
/// given up because nothing was heard for 1.5 s: a host that gets no CPU is silent, too.
pub fn played(
    make: impl Fn() -> Result<Network>,
    scene: impl Fn(&mut Network) -> Result<()>,
) -> Result<()> {
    for _ in 1..ROUNDS {
        let mut network = make()?;
        match scene(&mut network) {
            Err(error) if was_silent(&network) => eprintln!("played again: {error:#}"),
            played => return played,
        }
    }
    scene(&mut make()?)
}

/// Has one of the hosts behind the hub heard nothing from the other?
fn was_silent(network: &Network) -> bool {
    network.hosts[1..].iter().any(|host| {
        host.words().contains(&format!("peer {}: down: nothing was heard", other(host)))
    })
}

/// Hosts 1 and 2 call the hub, and have each other behind it.
pub fn introduced(plan: Plan) -> Result<Network> {
    let network = Network::configured(Plan { hosts: 3, ..plan })?;
    network.edit_config(0, |text| text.replacen("[link]\n", "[link]\nrelay = true\n", 1))?;
    for host in [1, 2] {
        network.let_wait(0, host)?;
        set_via(&network, host, true)?;
    }
    Ok(network)
}

/// The other host is behind the hub, or not a peer at all.
fn set_via(network: &Network, host: usize, is_behind: bool) -> Result<()> {
    let other = 3 - host;
    let address = format!("address = \"{}:{}\"\n", outer(other), vsnoop_testbed::hosts::PORT);
    let via = "via = \"h0\"\n";
    let (from, to) = if is_behind { (address.as_str(), via) } else { (via, "") };
    network.edit_config(host, |text| text.replace(from, to))
}

fn behind_nats(nats: [Nat; 2]) -> Result<Network> {
    planned_behind_nats(Plan::default(), nats)
}

fn planned_behind_nats(plan: Plan, nats: [Nat; 2]) -> Result<Network> {
    let mut network = introduced(plan)?;
    network.put_behind_nat(1, nats[0])?;
    network.put_behind_nat(2, nats[1])?;
    Ok(network)
}

/// Links run, and the hub will be killed.
fn with_mortal_hub() -> Result<Network> {
    let plan = Plan { dead_after: MISSED_AFTER, ..Plan::default() };
    let mut network = planned_behind_nats(plan, [Nat::PortPreserving; 2])?;
    start(&mut network)?;
    Ok(network)
}

fn start(network: &mut Network) -> Result<()> {
    network.hosts.iter_mut().try_for_each(Host::start)
}

pub fn other(host: &Host) -> String {
    format!("h{}", 3 - host.number())
}

fn peer_of(status: &Value, name: &str) -> Value {
    let mut peers = status["peers"].as_array().into_iter().flatten();
    peers.find(|peer| peer["name"] == name).cloned().unwrap_or_default()
}

/// Both hosts say so of each other.
pub fn until_path(network: &Network, path: &str) -> Result<()> {
    network.hosts[1..].iter().try_for_each(|host| {
        host.until(&format!("the path is {path}"), |status| {
            let state = if path == "direct" { "up" } else { "relayed" };
            let peer = peer_of(status, &other(host));
            peer["path"] == path && peer["state"] == state
        })
    })
}

fn transfer(network: &Network, bytes: u64) -> Result<()> {
    let [_, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(2, 0), bytes, &AtomicU64::new(0))
}

/// Bytes that the hub has sent to a host.
fn relayed_bytes(network: &Network) -> Result<u64> {
    let status = network.hosts[0].status()?;
    let sent = |name| peer_of(&status, name)["sent"]["bytes"].as_u64().context("no bytes sent");
    Ok(sent("h1")? + sent("h2")?)
}

/// A record with a label has another number in its header than its session.
fn relayed_to_pairs() -> Result<()> {
    let mut network = introduced(Plan { link: "threads = 3\n", ..Plan::default() })?;
    (1..=2).try_for_each(|host| network.put_behind_nat(host, Nat::PortPreserving))?;
    block(&network, true)?;
    start(&mut network)?;
    until_path(&network, "relayed")?;
    transfer(&network, 4 << 20)
}

fn past_the_hub() -> Result<()> {
    played(|| behind_nats([Nat::PortPreserving; 2]), take_direct_path)
}

fn take_direct_path(network: &mut Network) -> Result<()> {
    const BYTES: u64 = 8 << 20;
    start(network)?;
    until_path(network, "direct")?;
    // The VMs learn each other's addresses by the hub.
    transfer(network, 1 << 20)?;
    // After a silence of 1.5 s the hub relays for a moment.
    wait_until("a transfer does not go by the hub", PATIENCE, || {
        until_path(network, "direct")?;
        let before = relayed_bytes(network)?;
        transfer(network, BYTES)?;
        Ok(relayed_bytes(network)? - before < BYTES / 10)
    })?;
    for host in &network.hosts[1..] {
        let peer = host.peer(&other(host))?;
        let at: IpAddr = outer(3 - host.number());
        let address = peer["address"].as_str().context("no address")?;
        ensure!(address.starts_with(&at.to_string()), "{address} is not the NAT of {at}");
        ensure!(peer["via"] == "h0" && peer["reconnects"] == 0, "{peer}");
        let shown = host.command(&["status", host.name()])?;
        let row = shown.lines().find(|line| line.starts_with(&other(host)));
        ensure!(row.is_some_and(|row| row.contains(" direct ")), "{shown}");
    }
    Ok(())
}

fn stays_relayed() -> Result<()> {
    let mut network = behind_nats([Nat::PortPreserving, Nat::Symmetric])?;
    start(&mut network)?;
    until_path(&network, "relayed")?;
    transfer(&network, 4 << 20)?;
    let tried = |host: &Host| -> Result<bool> {
        let reason = host.peer(&other(host))?["reason"].clone();
        Ok(reason.as_str().is_some_and(|reason| reason.contains("no datagram came back")))
    };
    let [_, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    wait_until("the direct path is tried", PATIENCE, || Ok(tried(a)? || tried(b)?))?;
    until_path(&network, "relayed")?;
    transfer(&network, 4 << 20)
}

/// Nothing gets from one host to the other past the hub, or all does again.
fn block(network: &Network, is_blocked: bool) -> Result<()> {
    let to = |host| format!("ip saddr {} ip daddr {} drop\n", outer(3 - host), outer(host));
    let rules = if is_blocked { [to(1), to(2)].concat() } else { String::new() };
    for host in [1, 2] {
        network.router(host)?.nft(&format!(
            "table ip wall {{ }}\n\
             delete table ip wall\n\
             table ip wall {{\n\
             chain in {{\n\
             type filter hook prerouting priority -350; policy accept;\n\
             {rules}\
             }}\n\
             }}"
        ))?;
    }
    Ok(())
}

fn fails() -> Result<()> {
    let mut network = behind_nats([Nat::PortPreserving; 2])?;
    start(&mut network)?;
    until_path(&network, "direct")?;
    let [_, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    let moved = AtomicU64::new(0);
    thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(2, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 8 << 20)?;
        block(&network, true)?;
        until_path(&network, "relayed")?;
        let before = moved.load(Ordering::Relaxed);
        transfer::until_moved(&moved, before + (4 << 20))?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    block(&network, false)?;
    until_path(&network, "direct")?;
    transfer(&network, 4 << 20)
}

/// `sent` has this value until the sender has ended.
const SENDING: u32 = u32::MAX;

/// Numbers of frames that come, in their order, until each of those that were sent did. A tap
/// queues no more than 1000 frames, so they are read while others are sent.
fn numbers(tap: &Tap, sent: &AtomicU32, source: [u8; 6]) -> Result<Vec<u32>> {
    let mut packet = Pool::default().take();
    let (mut came, mut distinct, mut since) = (Vec::new(), HashSet::new(), Instant::now());
    loop {
        match sent.load(Ordering::Relaxed) {
            SENDING => since = Instant::now(),
            count if distinct.len() >= count as usize => return Ok(came),
            count => {
                let missing = || (0..count).filter(|n| !distinct.contains(n)).collect::<Vec<_>>();
                ensure!(since.elapsed() < PATIENCE, "of {count} frames miss {:?}", missing());
            }
        }
        if !tap.read(&mut packet).context("reading a frame")? {
            thread::sleep(Duration::from_micros(200));
        } else if packet.frame().get(6..12) == Some(&source[..])
            && let Some(number) = packet.frame().get(14..18)
        {
            let number = u32::from_be_bytes(number.try_into().context("four bytes")?);
            if number != u32::MAX {
                came.push(number);
                distinct.insert(number);
            }
        }
    }
}

/// Frames in both directions while the path changes; broadcasts are among them, which go by the
/// hub in any case.
fn switches() -> Result<()> {
    let mut network = behind_nats([Nat::PortPreserving; 2])?;
    block(&network, true)?;
    start(&mut network)?;
    until_path(&network, "relayed")?;
    let [_, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    let (from, to) = (raw_vm(a, "raw")?, raw_vm(b, "raw")?);
    introduce(&from, &to, OWNER)?;
    introduce(&to, &from, OTHER)?;
    let is_over = AtomicBool::new(false);
    let sends = |tap: &Tap, destination, source, sent: &AtomicU32| -> Result<()> {
        let mut number = 0;
        let mut all = || -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                let to = if number % 10 == 9 { BROADCAST } else { destination };
                send(tap, &frame(to, source, number))?;
                number += 1;
                thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        };
        let result = all();
        sent.store(number, Ordering::Relaxed);
        result
    };
    let (there, back) = (AtomicU32::new(SENDING), AtomicU32::new(SENDING));
    thread::scope(|scope| -> Result<()> {
        let senders = [
            scope.spawn(|| sends(&from, OTHER, OWNER, &there)),
            scope.spawn(|| sends(&to, OWNER, OTHER, &back)),
        ];
        let readers = [
            scope.spawn(|| numbers(&to, &there, OWNER)),
            scope.spawn(|| numbers(&from, &back, OTHER)),
        ];
        let switched = block(&network, false).and_then(|()| until_path(&network, "direct"));
        // Some frames go by the direct path.
        thread::sleep(Duration::from_millis(500));
        is_over.store(true, Ordering::Relaxed);
        for sender in senders {
            sender.join().map_err(|_| anyhow::anyhow!("a VM panicked"))??;
        }
        for (reader, sent) in readers.into_iter().zip([&there, &back]) {
            let came = reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
            let count = sent.load(Ordering::Relaxed);
            ensure!(came.len() as u32 == count, "{} frames came of {count}", came.len());
        }
        switched
    })
}

fn broadcasts() -> Result<()> {
    played(with_mortal_hub, broadcast_once)
}

fn broadcast_once(network: &mut Network) -> Result<()> {
    until_path(network, "direct")?;
    let (from, to) = (raw_vm(&network.hosts[1], "raw")?, raw_vm(&network.hosts[2], "raw")?);
    introduce(&from, &to, OWNER)?;
    let once = |first: u32| -> Result<()> {
        let broadcast = frame(BROADCAST, OWNER, first);
        send(&from, &broadcast)?;
        receive(&to, &broadcast, &[])?;
        let next = frame(BROADCAST, OWNER, first + 1);
        send(&from, &next)?;
        receive(&to, &next, &[broadcast])
    };
    once(1)?;
    network.hosts[0].kill();
    network.hosts[1].until("the hub is down", |status| peer_of(status, "h0")["state"] != "up")?;
    once(3)?;
    start_all(&mut network.hosts[..1])?;
    until_path(network, "direct")?;
    once(5)
}

fn outlives() -> Result<()> {
    played(with_mortal_hub, outlive_hub)
}

fn outlive_hub(network: &mut Network) -> Result<()> {
    until_path(network, "direct")?;
    network.hosts[0].kill();
    for host in &network.hosts[1..] {
        host.until("the hub is down", |status| peer_of(status, "h0")["state"] != "up")?;
    }
    transfer(network, 4 << 20)?;
    start_all(&mut network.hosts[..1])?;
    network.hosts[1..].iter().try_for_each(Host::until_all_up)?;
    for host in &network.hosts[1..] {
        let peer = host.peer(&other(host))?;
        ensure!(peer["reconnects"] == 0, "the direct path went with the hub: {peer}");
    }
    // And it relays again when the path fails.
    block(network, true)?;
    until_path(network, "relayed")?;
    transfer(network, 4 << 20)
}

fn restarts() -> Result<()> {
    let mut network = behind_nats([Nat::PortPreserving; 2])?;
    start(&mut network)?;
    until_path(&network, "direct")?;
    for host in [2, 1] {
        network.hosts[host].kill();
        start_all(&mut network.hosts[host..=host])?;
        until_path(&network, "direct")?;
        transfer(&network, 2 << 20)?;
    }
    Ok(())
}

/// The router of a host gets another address; the kernel drops what was bound to the old one.
fn rebinds() -> Result<()> {
    let mut network = behind_nats([Nat::PortPreserving; 2])?;
    start(&mut network)?;
    until_path(&network, "direct")?;
    let IpAddr::V4(old) = outer(1) else { unreachable!("hosts have IPv4 addresses") };
    let [a, b, c, d] = old.octets();
    let new = Ipv4Addr::new(a, b, c, d + 100);
    let router = network.router(1)?;
    router.ip(&format!("addr del {old}/24 dev uplink"))?;
    router.ip(&format!("addr add {new}/24 dev uplink"))?;
    network.hosts[2].until("the other end is at the new address", |status| {
        let peer = peer_of(status, "h1");
        let address = peer["address"].as_str().unwrap_or_default();
        peer["path"] == "direct" && address.starts_with(&new.to_string())
    })?;
    until_path(&network, "direct")?;
    transfer(&network, 4 << 20)
}

fn reloads() -> Result<()> {
    let mut network = behind_nats([Nat::PortPreserving; 2])?;
    set_via(&network, 1, false)?;
    start(&mut network)?;
    network.hosts[2].until("the other does not ask for it", |status| {
        let peer = peer_of(status, "h1");
        peer["state"] == "relayed" || peer["reason"].is_string()
    })?;
    transfer(&network, 1 << 20)?;
    ensure!(network.hosts[2].peer("h1")?["path"] != "direct");
    network
        .edit_config(1, |text| text.replace("name = \"h2\"\n", "name = \"h2\"\nvia = \"h0\"\n"))?;
    let reload = |host: usize| {
        let host = &network.hosts[host];
        host.command(&["reload", host.name()]).map(drop)
    };
    reload(1)?;
    until_path(&network, "direct")?;
    transfer(&network, 1 << 20)?;
    // The hub relays for one of them only.
    let line = "name = \"h2\"\n";
    network.edit_config(0, |text| text.replace(line, &format!("{line}relay = false\n")))?;
    reload(0)?;
    transfer(&network, 1 << 20)?;
    // The direct path needs no hub.
    until_path(&network, "direct")?;
    network.edit_config(0, |text| text.replace(&format!("{line}relay = false\n"), line))?;
    reload(0)?;
    network.hosts[1..].iter().try_for_each(Host::until_all_up)?;
    transfer(&network, 1 << 20)
}

/// The hub is a peer of the file; the hosts behind it know each other by etcd.
fn of_etcd() -> Result<()> {
    let mut network = introduced(Plan::default())?;
    let etcd = network.etcd(1, EtcdOptions::default())?;
    for host in [1, 2] {
        let before = network.config(host)?;
        let is_hub = |table: &&str| table.contains("name = \"h0\"");
        let hub = before.split("[[peer]]").find(is_hub).context("no hub")?;
        network.announce(host, &etcd, "ttl = \"5s\"\n")?;
        network.edit_config(host, |text| format!("{text}via = \"h0\"\n\n[[peer]]{hub}"))?;
    }
    (1..=2).try_for_each(|host| network.put_behind_nat(host, Nat::PortPreserving))?;
    start(&mut network)?;
    until_path(&network, "direct")?;
    transfer(&network, 4 << 20)?;
    for host in &network.hosts[1..] {
        let peer = host.peer(&other(host))?;
        ensure!(peer["source"] == "etcd" && peer["via"] == "h0", "{peer}");
    }
    Ok(())
}

/// All know each other by the names in their certificates.
fn certified() -> Result<()> {
    let mut network = introduced(Plan::default())?;
    certificates::certify(&network, None)?;
    (1..=2).try_for_each(|host| network.put_behind_nat(host, Nat::PortPreserving))?;
    start(&mut network)?;
    until_path(&network, "direct")?;
    transfer(&network, 4 << 20)
}
