//! Every transport carries everything: both families, all directions, multicast, compressed or not.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Network, Outside, Plan, inner_v4, inner_v6};

/// Part of a transfer during which compression is switched.
const PART_BYTES: u64 = 4 << 20;
/// Bytes each way of a transfer between two hosts.
pub const EXCHANGED_BYTES: u64 = 2 << 20;
const TRANSPORTS: [&str; 3] = ["udp", "tls", "udp-plain"];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in TRANSPORTS {
        trials.push(trial(
            format!("transports::{transport}::three_hosts_and_twelve_vms"),
            move || mesh(Plan { hosts: 3, vms_per_host: 4, transport, ..Plan::default() }),
        ));
        trials.push(trial(
            format!("transports::{transport}::multicast_reaches_all_hosts"),
            move || multicast(transport),
        ));
        for method in ["lz4", "zstd", "zstd:3", "auto"] {
            let name =
                format!("transports::{transport}::compressed_by_{}", method.replace(':', "_"));
            trials.push(trial(name, move || compressed(transport, method)));
        }
        trials
            .push(trial(format!("transports::{transport}::guests_without_offloads"), move || {
                without_offloads(transport)
            }));
    }
    for transport in ["udp", "tls"] {
        for (name, outside) in [("ipv6", Outside::V6), ("ipv4_by_default", Outside::V4ByDefault)] {
            trials.push(trial(
                format!("transports::{transport}::the_outside_is_{name}"),
                move || mesh(Plan { transport, outside, ..Plan::default() }),
            ));
        }
    }
    trials
}

fn mesh(plan: Plan) -> Result<()> {
    exchange(&Network::up(plan.clone())?, &plan)
}

/// Each VM of each host exchanges bytes with one of every other host.
pub fn exchange(network: &Network, plan: &Plan) -> Result<()> {
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for host in 0..plan.hosts {
            for vm in 0..plan.vms_per_host {
                let moved = &moved;
                running.push(scope.spawn(move || -> Result<()> {
                    let other = (host + 1 + vm % (plan.hosts - 1)) % plan.hosts;
                    let to = &network.hosts[other].vms[vm];
                    let from = &network.hosts[host].vms[vm];
                    for at in [inner_v4(other, vm), inner_v6(other, vm)] {
                        transfer::run(from, to, at, EXCHANGED_BYTES, moved)
                            .with_context(|| format!("VM {vm} of host {host} to {at}"))?;
                    }
                    Ok(())
                }));
            }
        }
        running.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a transfer panicked"))?
        })
    })?;
    for host in &network.hosts {
        let status = host.status()?;
        for peer in status["peers"].as_array().context("peers")? {
            ensure!(peer["state"] == "up", "a peer is not up any more: {peer}");
            ensure!(peer["rejected"] == 0, "records were refused: {peer}");
            let at: SocketAddr = peer["address"].as_str().context("an address")?.parse()?;
            // A peer's IPv4 address is reported as such, also if its socket is an IPv6 one.
            let outside = (0..plan.hosts).map(|host| plan.outside.address(host));
            ensure!(outside.into_iter().any(|outside| outside == at.ip()), "a peer at {at}");
            if peer["encrypted"] == true {
                let (seal, open) = (&peer["cpu"]["seal_ns"], &peer["cpu"]["open_ns"]);
                let some = |ns: &Value| ns.as_u64() > Some(0);
                ensure!(some(seal) && some(open), "encryption took no time: {peer}");
            }
        }
        let [egress, ingress, all] =
            ["egress_ns", "ingress_ns", "process_ns"].map(|key| status["cpu"][key].as_u64());
        ensure!(egress.min(ingress) > Some(0) && all > egress.max(ingress), "{}", status["cpu"]);
        let vms = (plan.hosts * plan.vms_per_host) as u64;
        ensure!(status["learned"].as_u64() >= Some(vms), "{vms} VMs, {}", status["learned"]);
    }
    Ok(())
}

fn multicast(transport: &'static str) -> Result<()> {
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 7, 7, 7);
    let network = Network::up(Plan { hosts: 3, transport, ..Plan::default() })?;
    let address = |host| match inner_v4(host, 0) {
        std::net::IpAddr::V4(v4) => v4,
        std::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    let mut receivers = Vec::new();
    for host in 1..3 {
        receivers.push(network.hosts[host].vms[0].run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7777))?;
            socket.join_multicast_v4(&GROUP, &address(host))?;
            socket.set_read_timeout(Some(Duration::from_millis(200)))?;
            Ok(socket)
        })?);
    }
    let sender = network.hosts[0].vms[0].run(|| {
        let socket = UdpSocket::bind(SocketAddr::new(inner_v4(0, 0), 0))?;
        socket2::SockRef::from(&socket).set_multicast_if_v4(&address(0))?;
        Ok(socket)
    })?;
    let since = Instant::now();
    let mut waiting: Vec<_> = receivers.iter().collect();
    while !waiting.is_empty() {
        ensure!(since.elapsed() < Duration::from_secs(120), "{} hosts got nothing", waiting.len());
        // Longer than the MTU: a fragmented IP packet.
        sender.send_to(&[7; 4000], (GROUP, 7777)).context("sending")?;
        let mut buffer = [0; 5000];
        waiting.retain(|socket| !matches!(socket.recv(&mut buffer), Ok(4000)));
    }
    Ok(())
}

/// Switched on while connections are open, and off again.
fn compressed(transport: &'static str, method: &str) -> Result<()> {
    let network = Network::up(Plan { transport, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let running = scope
            .spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 * PART_BYTES, &moved));
        for (part, word) in (1..).zip([method, "off", method]) {
            transfer::until_moved(&moved, part * PART_BYTES)?;
            for host in [a, b] {
                host.command(&["set", host.name(), "--compress", word])?;
            }
        }
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    let bytes = |sent: &Value| sent["wire_bytes"].as_u64().context("no wire_bytes");
    let of_classes = |status: &Value| -> Result<u64> {
        status["compression"]
            .as_array()
            .context("no compression")?
            .iter()
            .map(|c| bytes(&c["sent"]))
            .sum()
    };
    // Bytes to the peer are read before those of the rules here, and after them below, so that
    // frames sent meanwhile do not count for the rules alone. The `set` commands above deleted
    // counters with their rules.
    let of_peer = bytes(&a.peer("h1")?["sent"])?;
    let of_rules = of_classes(&a.status()?)?;
    // This transfer is compressed from its first byte on.
    transfer::run(&a.vms[0], &b.vms[0], inner_v6(1, 0), 4 << 20, &moved)?;
    let of_rules = of_classes(&a.status()?)? - of_rules;
    let sent = a.peer("h1")?["sent"].clone();
    let of_peer = bytes(&sent)? - of_peer;
    // The rest are messages of the link itself; refused datagrams are of the rules alone.
    let is_ordered = !transport.starts_with("udp");
    ensure!(of_rules <= of_peer || !is_ordered, "{of_rules} of rules, {of_peer} of the peer");
    ensure!(of_rules > of_peer / 2, "{of_rules} of rules, {of_peer} of the peer");
    let ratio = sent["ratio"].as_f64().context("no ratio")?;
    // `auto` does not compress if that gains nothing, as between two namespaces.
    ensure!(method == "auto" || ratio > 1.05, "nothing was compressed: {sent}");
    let rule = a.status()?["compression"][0].clone();
    let flows = rule["methods"].as_object().context("no methods")?;
    // `auto` may choose any method for the data of both transfers; the status names it.
    let is_said = |said: &String| method == "auto" || said == method;
    ensure!(flows.keys().any(is_said), "no flow goes by {method}: {rule}");
    ensure!(rule["flows"].as_u64() == flows.values().map(Value::as_u64).sum(), "{rule}");
    ensure!(method == "auto" || a.peer("h1")?["cpu"]["compress_ns"].as_u64() > Some(0), "{rule}");
    Ok(())
}

fn without_offloads(transport: &'static str) -> Result<()> {
    let network = Network::up(Plan { transport, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for vm in [&a.vms[0], &b.vms[0]] {
        vm.set_offloads("eth0", false)?;
    }
    let moved = AtomicU64::new(0);
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&a.vms[0], &b.vms[0], at, 8 << 20, &moved)?;
    }
    Ok(())
}
