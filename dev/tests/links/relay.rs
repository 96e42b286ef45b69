//! Hosts that reach a hub, and each other by it.

use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::hosts::{Nat, Network, Plan, inner_v4, start_all};
use vsnoop_testbed::wait::wait_until;

use crate::raw_vm::{BROADCAST, OTHER, OWNER, PATIENCE, frame, introduce, raw_vm, receive, send};
use crate::{transfer, trial};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        let name = |what| format!("relay::{transport}::{what}");
        trials.push(trial(name("hosts_behind_nats_reach_each_other_by_a_hub"), move || {
            behind_nats(transport)
        }));
        trials.push(trial(name("a_hub_that_comes_back_relays_again"), move || {
            comes_back(plan(transport))
        }));
    }
    trials.push(trial("relay::what_a_host_floods_is_relayed_at_a_rate", bounded));
    trials.push(trial("relay::a_frame_is_relayed_once_and_never_back", once));
    trials
}

/// Hosts 1 and 2 have the hub as their only peer, and call it.
fn star(plan: Plan) -> Result<Network> {
    let network = Network::configured(Plan { hosts: 3, ..plan })?;
    for host in [1, 2] {
        network.let_wait(0, host)?;
        let is_other = |table: &&str| !table.contains(&format!("name = \"h{}\"", 3 - host));
        network.edit_config(host, |text| {
            text.split("[[peer]]\n").filter(is_other).collect::<Vec<_>>().join("[[peer]]\n")
        })?;
    }
    Ok(network)
}

/// Builds a star whose hub relays.
fn relaying(plan: Plan) -> Result<Network> {
    let network = star(plan)?;
    network.edit_config(0, |text| text.replacen("[link]\n", "[link]\nrelay = true\n", 1))?;
    Ok(network)
}

/// One of the NATs is symmetric. Until the hub relays, no frame comes to the other host.
fn behind_nats(transport: &'static str) -> Result<()> {
    let mut network = star(plan(transport))?;
    network.put_behind_nat(1, Nat::PortPreserving)?;
    network.put_behind_nat(2, Nat::Symmetric)?;
    start_all(&mut network.hosts)?;
    let [hub, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    let (a, b) = (&a.vms[0], &b.vms[0]);
    let hub_answers = || Ok(a.ping(inner_v4(0, 0), 1).is_ok());
    wait_until("the hub's own VM answers", PATIENCE, hub_answers)?;
    ensure!(a.ping(inner_v4(2, 0), 1).is_err(), "it relays without being told");
    for peer in ["h1", "h2"] {
        let line = format!("name = \"{peer}\"\n");
        network.edit_config(0, |text| text.replace(&line, &format!("{line}relay = true\n")))?;
    }
    hub.command(&["reload", hub.name()])?;
    let answers = || Ok(a.ping(inner_v4(2, 0), 1).is_ok());
    wait_until("the other VM answers", PATIENCE, answers)?;
    transfer::run(a, b, inner_v4(2, 0), 8 << 20, &AtomicU64::new(0))
}

pub fn plan(transport: &'static str) -> Plan {
    Plan { transport, ..Plan::default() }
}

/// The hub is killed in the middle, and started again.
pub fn comes_back(plan: Plan) -> Result<()> {
    // The hub does not call: the others have to miss it.
    let mut network = relaying(Plan { dead_after: Some("5s"), ..plan })?;
    start_all(&mut network.hosts)?;
    let ping = |network: &Network| network.hosts[1].vms[0].ping(inner_v4(2, 0), 1).is_ok();
    wait_until("the other VM answers", PATIENCE, || Ok(ping(&network)))?;
    network.hosts[0].kill();
    ensure!(!ping(&network), "there is another way");
    start_all(&mut network.hosts[..1])?;
    wait_until("the other VM answers again", PATIENCE, || Ok(ping(&network)))
}

/// A host without a bound of its own sends ten times as many broadcasts as the hub relays.
fn bounded() -> Result<()> {
    const FRAMES: u32 = 2000;
    let network = relaying(Plan { vms_per_host: 0, ..Plan::default() })?;
    for (host, rate) in [(0, 100), (1, 0)] {
        let line = format!("[link]\nflood_rate = {rate}\n");
        network.edit_config(host, |text| text.replacen("[link]\n", &line, 1))?;
    }
    let mut network = network;
    start_all(&mut network.hosts)?;
    let [hub, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    let (flooding, other) = (raw_vm(a, "raw")?, raw_vm(b, "raw")?);
    introduce(&flooding, &other, OWNER)?;
    for number in 0..FRAMES {
        send(&flooding, &frame(BROADCAST, OWNER, number))?;
        if number % 100 == 0 {
            thread::sleep(Duration::from_millis(10));
        }
    }
    wait_until("the hub has kept some back", PATIENCE, || {
        Ok(hub.peer("h1")?["dropped"]["flood"].as_u64() > Some(0))
    })?;
    // Frames of a known address have no bound.
    let end = frame(OTHER, OWNER, FRAMES);
    introduce(&other, &flooding, OTHER)?;
    send(&flooding, &end)?;
    receive(&other, &end, &[])
}

/// A broadcast comes to the hub's VM and to the other host's once, and not back.
fn once() -> Result<()> {
    let mut network = relaying(Plan { vms_per_host: 0, ..Plan::default() })?;
    start_all(&mut network.hosts)?;
    let [hub, a, b] = &network.hosts[..] else { unreachable!("three hosts") };
    let (hub, from, to) = (raw_vm(hub, "raw")?, raw_vm(a, "raw")?, raw_vm(b, "raw")?);
    introduce(&from, &to, OWNER)?;
    introduce(&to, &from, OTHER)?;
    let first = frame(BROADCAST, OWNER, 1);
    send(&from, &first)?;
    receive(&hub, &first, &[])?;
    receive(&to, &first, &[])?;
    let end = frame(BROADCAST, OWNER, 2);
    send(&from, &end)?;
    for vm in [&hub, &to] {
        receive(vm, &end, std::slice::from_ref(&first))?;
    }
    let last = frame(BROADCAST, OTHER, 3);
    send(&to, &last)?;
    receive(&from, &last, &[first, end])
}
