//! Peers that die, come back, move, or have a wrong key.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Network, Outside, PORT, Plan, inner_v4, socket, start_all};
use vsnoop_testbed::wait::wait_until;

/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        trials
            .push(trial(format!("peers::{transport}::killed_and_restarted_resumes"), move || {
                killed(transport)
            }));
        trials.push(trial(
            format!("peers::{transport}::a_wrong_key_is_refused_and_named"),
            move || wrong_key(transport),
        ));
        trials.push(trial(format!("peers::{transport}::keys_change_in_mid_transfer"), move || {
            rekeyed(transport)
        }));
    }
    for (name, outside) in
        [("ipv4", Outside::V4), ("ipv4_by_default", Outside::V4ByDefault), ("ipv6", Outside::V6)]
    {
        let name = format!("peers::udp::moves_to_another_address_by_{name}");
        trials.push(trial(name, move || moved_address(outside)));
    }
    trials.push(trial("peers::down_ends_it_and_tells_the_peer", down));
    trials.push(trial("peers::another_mtu_there_is_told", other_mtu));
    trials
}

fn killed(transport: &'static str) -> Result<()> {
    let mut network = Network::up(Plan { transport, ..Plan::default() })?;
    let moved = AtomicU64::new(0);
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&left[0], &mut right[0]);
    let from = &a.vms[0];
    // The VM outlives its host's link.
    let vm = std::mem::take(&mut b.vms);
    let done = std::thread::scope(|scope| -> Result<()> {
        let running = scope.spawn(|| transfer::run(from, &vm[0], inner_v4(1, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 8 << 20)?;
        let timeouts = || from.counter("TcpExt", "TCPTimeouts");
        let before = timeouts()?;
        b.kill();
        wait_until("the VM's TCP has timed out", PATIENCE, || Ok(timeouts()? > before))?;
        b.start()?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    });
    b.vms = vm;
    done?;
    a.until_all_up()
}

fn other_mtu() -> Result<()> {
    let mut network = Network::configured(Plan::default())?;
    network.edit_config(1, |text| text.replacen("[link]\n", "[link]\nmtu = 9000\n", 1))?;
    start_all(&mut network.hosts)?;
    let said = ["link.mtu is 1500 here and 9000 there", "link.mtu is 9000 here and 1500 there"];
    for (host, said) in network.hosts.iter().zip(said) {
        let problems = host.status()?["problems"].to_string();
        ensure!(problems.contains(said), "{said:?} is not in {problems}");
        ensure!(host.words().matches(said).count() == 1, "the log: {}", host.words());
    }
    Ok(())
}

fn wrong_key(transport: &'static str) -> Result<()> {
    let mut network = Network::configured(Plan { transport, ..Plan::default() })?;
    network.change_key(1)?;
    for host in &mut network.hosts {
        host.start()?;
    }
    let a = &network.hosts[0];
    a.until("the reason is shown", |status| {
        let reason = status["peers"][0]["reason"].as_str().unwrap_or_default();
        reason.contains("key")
    })?;
    ensure!(a.peer("h1")?["state"] != "up", "a peer with a wrong key is up");
    Ok(())
}

/// Sessions are replaced each five seconds, the least that may be configured.
fn rekeyed(transport: &'static str) -> Result<()> {
    let mut network = Network::configured(Plan { transport, ..Plan::default() })?;
    network.rekey_every("5s")?;
    for host in &mut network.hosts {
        host.start()?;
    }
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    a.until_all_up()?;
    let since = Instant::now();
    let moved = AtomicU64::new(0);
    while a.peer("h1")?["rekeys"].as_u64().context("rekeys")? == 0 {
        ensure!(since.elapsed() < Duration::from_secs(120), "no new keys");
        transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 16 << 20, &moved)?;
    }
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 16 << 20, &moved)
}

/// The initiator's address changes under a transfer; the acceptor follows.
fn moved_address(outside: Outside) -> Result<()> {
    const ELSEWHERE: usize = 99;
    let mut network = Network::configured(Plan { outside, ..Plan::default() })?;
    // Host 1 does not call, so that host 0's address is the one to follow.
    let at = format!("address = \"{}\"\n", SocketAddr::new(outside.address(0), PORT));
    network.edit_config(1, |text| text.replace(&at, ""))?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let is_at = |host: usize| -> Result<Value> {
        let peer = b.peer("h0")?;
        // Where its datagrams come from, and not where its handshake came from.
        let expected = SocketAddr::new(outside.address(host), PORT).to_string();
        ensure!(peer["address"] == expected, "the peer is said to be at {}", peer["address"]);
        Ok(peer["roams"].clone())
    };
    ensure!(is_at(0)? == 0, "a peer that has just come has moved: {}", b.words());
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 8 << 20)?;
        let length = outside.prefix_length();
        a.netns.ip(&format!("addr del {}/{length} dev uplink", outside.address(0)))?;
        a.netns.add_address("uplink", outside.address(ELSEWHERE), length)?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    ensure!(is_at(ELSEWHERE)? == 1, "it moved once");
    ensure!(b.peer("h0")?["reconnects"] == 0, "the session was given up");
    Ok(())
}

fn down() -> Result<()> {
    let mut network = Network::up(Plan::default())?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&left[0], &mut right[0]);
    b.command(&["down", b.name()])?;
    let link = b.link.take().context("a link")?;
    let ended = { link }.wait().context("waiting for the link")?;
    ensure!(ended.success(), "it ended with {ended}");
    ensure!(!socket(b.name()).exists(), "its socket is still there");
    ensure!(b.netns.ip("link show vsl0").is_err(), "its tap is still there");
    a.until("the peer has closed, and calls that find nobody do not hide that", |status| {
        let peer = &status["peers"][0];
        let reason = peer["reason"].as_str().unwrap_or_default();
        let is_said = reason.contains("taken the link down; since then: ");
        let is_measured =
            ["rtt_ns", "rtt_min_ns", "jitter_ns"].iter().any(|key| !peer[key].is_null());
        peer["state"] != "up" && is_said && !is_measured
    })
}
