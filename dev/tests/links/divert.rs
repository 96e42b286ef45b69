//! Diversion: what VMs send each other goes through links and comes out with its addresses
//! unchanged.
//!
//! Where a test is to show that it goes through the link, the hosts have no other way to each
//! other's VMs.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};
use vsnoop_packet::builder::{Addresses, Ethernet, Route, UdpFrame};
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::wait::wait_until;

use crate::transfer::until_moved;
use crate::{membership, transfer, trial};
use vsnoop_testbed::hosts::{
    EtcdOptions, Host, Network, Plan, TAP, connect_routed, divert, net_v4, net_v6, router_v4,
    vm_v4, vm_v6,
};

const BYTES: u64 = 8 << 20;
/// A peer that falls silent is missed soon.
const SOON: Option<&str> = Some("1s");
const PATIENCE: Duration = Duration::from_secs(120);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        for (what, test) in [
            ("both_families_with_addresses_unchanged", families as fn(&'static str) -> Result<()>),
            ("compressed_by_interface_and_by_prefix", compressed),
            ("a_peer_that_dies_leaves_the_ordinary_way_until_it_is_back", peer_dies),
        ] {
            trials.push(trial(format!("divert::{transport}::{what}"), move || test(transport)));
        }
    }
    trials.push(trial("divert::the_own_link_killed_leaves_the_ordinary_way", killed));
    trials.push(trial("divert::new_keys_do_not_interrupt_it", rekeyed));
    trials.push(trial("divert::drop_leaves_no_other_way_while_the_peer_is_down", dropped));
    trials.push(trial("divert::what_the_peer_does_not_take_goes_the_ordinary_way", not_taken));
    trials.push(trial("divert::each_prefix_that_is_not_diverted_has_its_own_reason", reasons));
    trials.push(trial("divert::a_tap_that_is_made_again_is_hooked_again", made_again));
    trials.push(trial("divert::each_interface_has_rules_and_a_tap_of_its_own", two_interfaces));
    trials.push(trial("divert::down_gives_the_traffic_back", down));
    trials.push(trial("divert::the_longest_prefix_of_an_interface_has_the_packet", longest));
    trials.push(trial("divert::what_is_for_no_vm_of_the_far_host_is_refused_there", foreign));
    trials.push(trial("divert::a_forged_source_is_not_diverted", forged));
    trials.push(trial("divert::a_host_of_etcd_is_diverted_to_while_it_is_there", of_etcd));
    trials
}

/// The status of a host's diversion to a prefix.
fn diverted(host: &Host, prefix: &str) -> Result<Value> {
    let status = host.status()?;
    let diverts = status["diverts"].as_array().context("no diverts in the status")?;
    let found = diverts.iter().find(|divert| divert["prefix"] == prefix);
    found.cloned().with_context(|| format!("no {prefix} in {diverts:?}"))
}

/// Waits until all diversions of a host are in this state.
fn until_diverts(host: &Host, state: &str) -> Result<()> {
    host.until(&format!("diversions are {state}"), |status| {
        let diverts = status["diverts"].as_array();
        diverts.is_some_and(|diverts| diverts.iter().all(|divert| divert["state"] == state))
    })
}

/// A transfer from one VM to the other and back, by both families.
fn exchange(network: &Network, from: usize, to: usize) -> Result<()> {
    let moved = AtomicU64::new(0);
    let [one, other] = [from, to].map(|host| &network.hosts[host].vms[0]);
    for at in [vm_v4(to), vm_v6(to)] {
        transfer::run(one, other, at, BYTES, &moved).with_context(|| format!("to {at}"))?;
    }
    Ok(())
}

fn count(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().with_context(|| format!("no {key} in {value}"))
}

/// Bytes that a host's hooks have diverted.
fn diverted_bytes(host: &Host) -> Result<u64> {
    let status = host.status()?;
    let diverts = status["diverts"].as_array().context("no diverts in the status")?;
    diverts.iter().map(|divert| count(divert, "bytes")).sum()
}

/// Counters of packets that came in from a peer.
fn entered(host: &Host, peer: &str) -> Result<Value> {
    let status = host.status()?;
    let peers = status["entry"]["peers"].as_array().context("no entry in the status")?;
    peers.iter().find(|one| one["peer"] == peer).cloned().context("no such peer")
}

fn families(transport: &'static str) -> Result<()> {
    let network = Network::up(Plan { transport, ..Plan::routed() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for host in [a, b] {
        until_diverts(host, "active")?;
    }
    exchange(&network, 0, 1)?;
    for (from, to) in [(vm_v4(0), vm_v4(1)), (vm_v6(0), vm_v6(1))] {
        let listener = b.vms[0].run(|| Ok(TcpListener::bind(SocketAddr::new(to, 0))?))?;
        let address = listener.local_addr()?;
        let _socket =
            a.vms[0].run(|| Ok(TcpStream::connect_timeout(&address, Duration::from_secs(120))?))?;
        let (_, seen) = listener.accept()?;
        ensure!(seen.ip() == from, "{from} is seen as {seen}");
    }
    for (host, other, name) in [(a, 1, "h1"), (b, 0, "h0")] {
        for prefix in [net_v4(other), net_v6(other)] {
            let bytes = count(&diverted(host, &prefix)?, "bytes")?;
            ensure!(bytes > BYTES, "{bytes} bytes were diverted to {prefix}");
        }
        let entered = entered(host, name)?;
        ensure!(count(&entered, "bytes")? > 2 * BYTES, "{entered}");
        ensure!(entered["refused"] == serde_json::json!({}), "refused: {entered}");
        let status = host.status()?;
        ensure!(status["learned"] == 0, "the forwarding table has seen diverted frames");
        ensure!(status["entry"]["dropped"] == 0, "no room: {}", status["entry"]);
        if transport != "udp" {
            let size = count(&entered, "bytes")? / count(&entered, "frames")?.max(1);
            ensure!(size > 3000, "super-packets did not stay whole: {size} bytes on average");
        }
    }
    Ok(())
}

fn compressed(transport: &'static str) -> Result<()> {
    let more = "[[compress]]\nport = \"tap0\"\nprefix = \"10.88.0.0/16\"\nmethod = \"zstd\"\n\
                [[compress]]\nprefix = \"fd88::/16\"\nmethod = \"lz4\"\n";
    let network = Network::up(Plan { transport, more, ..Plan::routed() })?;
    until_diverts(&network.hosts[0], "active")?;
    until_diverts(&network.hosts[1], "active")?;
    exchange(&network, 0, 1)?;
    let status = network.hosts[0].status()?;
    for (rule, name) in [(0, "the interface's rule"), (1, "the prefix's rule")] {
        let sent = &status["compression"][rule]["sent"];
        ensure!(count(sent, "bytes")? > BYTES, "{name} met {sent}");
        let ratio = sent["ratio"].as_f64().context("no ratio")?;
        ensure!(ratio > 1.05, "{name} compressed nothing: {sent}");
    }
    Ok(())
}

fn peer_dies(transport: &'static str) -> Result<()> {
    let plan = Plan { transport, ordinary_way: true, dead_after: SOON, ..Plan::routed() };
    let mut network = Network::up(plan)?;
    until_diverts(&network.hosts[0], "active")?;
    until_diverts(&network.hosts[1], "active")?;
    let moved = AtomicU64::new(0);
    let vms: Vec<_> =
        network.hosts.iter_mut().flat_map(|host| std::mem::take(&mut host.vms)).collect();
    let b = &mut network.hosts[1];
    let done = std::thread::scope(|scope| -> Result<()> {
        let running = scope.spawn(|| transfer::run(&vms[0], &vms[1], vm_v4(1), 20 * BYTES, &moved));
        until_moved(&moved, BYTES)?;
        b.kill();
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    });
    for (host, vm) in network.hosts.iter_mut().zip(vms) {
        host.vms.push(vm);
    }
    done?;
    let a = &network.hosts[0];
    until_diverts(a, "peer_down")?;
    let before = diverted_bytes(a)?;
    exchange(&network, 0, 1)?;
    ensure!(diverted_bytes(a)? == before, "diverted to a peer that is down");
    ensure!(count(&diverted(a, &net_v4(1))?, "missed")? > 0, "nothing was missed");

    network.hosts[1].start()?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    until_diverts(a, "active")?;
    until_diverts(b, "active")?;
    // Beside a silence of a second, in which the peer counts as dead, some go the ordinary way.
    wait_until("all is diverted again", PATIENCE, || {
        let before = diverted_bytes(a)?;
        exchange(&network, 0, 1)?;
        Ok(diverted_bytes(a)? > before + 2 * BYTES)
    })
}

/// SIGKILL in mid-transfer leaves nothing in the kernel.
fn killed() -> Result<()> {
    let plan = Plan { ordinary_way: true, dead_after: SOON, ..Plan::routed() };
    let mut network = Network::up(plan)?;
    until_diverts(&network.hosts[0], "active")?;
    until_diverts(&network.hosts[1], "active")?;
    let tap = diverted(&network.hosts[0], &net_v4(1))?["tap"].clone();
    let tap = tap.as_str().context("no tap")?;
    network.hosts[0].netns.ip(&format!("link show {tap}"))?;
    let moved = AtomicU64::new(0);
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&mut left[0], &right[0]);
    let vm = std::mem::take(&mut a.vms);
    let done = std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&vm[0], &b.vms[0], vm_v4(1), 20 * BYTES, &moved));
        until_moved(&moved, BYTES)?;
        a.kill();
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    });
    a.vms = vm;
    done?;
    ensure!(a.netns.ip(&format!("link show {tap}")).is_err(), "{tap} is left");
    exchange(&network, 0, 1)
}

/// Sessions are replaced each five seconds, the least that may be configured.
fn rekeyed() -> Result<()> {
    let network = Network::up(Plan { link: "rekey = \"5s\"", ..Plan::routed() })?;
    let a = &network.hosts[0];
    until_diverts(a, "active")?;
    until_diverts(&network.hosts[1], "active")?;
    let since = Instant::now();
    while a.peer("h1")?["rekeys"] == 0 || a.peer("h1")?["rekeys"] == 1 {
        ensure!(since.elapsed() < Duration::from_secs(120), "no new keys");
        exchange(&network, 0, 1)?;
    }
    for prefix in [net_v4(1), net_v6(1)] {
        let diverted = diverted(a, &prefix)?;
        ensure!(diverted["active"] == true && diverted["missed"] == 0, "{diverted}");
    }
    Ok(())
}

fn dropped() -> Result<()> {
    fn drop(number: usize) -> Option<String> {
        let peer = 1 - number;
        Some(format!("{}when_down = \"drop\"\n", divert(peer, &[net_v4(peer), net_v6(peer)])))
    }
    let plan = Plan { ordinary_way: true, dead_after: SOON, diverts: drop, ..Plan::routed() };
    let mut network = Network::up(plan)?;
    until_diverts(&network.hosts[0], "active")?;
    until_diverts(&network.hosts[1], "active")?;
    exchange(&network, 0, 1)?;
    network.hosts[1].kill();
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    until_diverts(a, "peer_down")?;
    let listener = b.vms[0].run(|| Ok(TcpListener::bind(SocketAddr::new(vm_v4(1), 0))?))?;
    let address = listener.local_addr()?;
    let connect = || Ok(TcpStream::connect_timeout(&address, Duration::from_millis(500))?);
    ensure!(a.vms[0].run(connect).is_err(), "what was to be dropped went its ordinary way");
    ensure!(count(&diverted(a, &net_v4(1))?, "missed")? > 0, "nothing was dropped");
    Ok(())
}

/// Host 1 accepts no IPv6 prefix: host 0 does not divert IPv6, which host 1 would drop.
fn not_taken() -> Result<()> {
    fn v4_only(number: usize) -> Option<String> {
        (number == 1).then(|| format!("[\"{}\"]", net_v4(1)))
    }
    fn two_tables(number: usize) -> Option<String> {
        let peer = 1 - number;
        Some([divert(peer, &[net_v4(peer)]), divert(peer, &[net_v6(peer)])].concat())
    }
    let plan = Plan { ordinary_way: true, local: v4_only, diverts: two_tables, ..Plan::routed() };
    let network = Network::up(plan)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    a.until("one diversion is refused", |status| {
        status["diverts"][0]["state"] == "active" && status["diverts"][1]["state"] == "not_taken"
    })?;
    until_diverts(b, "active")?;
    exchange(&network, 0, 1)?;
    let refused = diverted(a, &net_v6(1))?;
    ensure!(count(&refused, "packets")? == 0 && count(&refused, "missed")? > 0, "{refused}");
    let reason = refused["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains(&net_v6(1)), "the reason is {reason:?}");
    ensure!(count(&diverted(a, &net_v4(1))?, "bytes")? > BYTES, "IPv4 was not diverted");
    let entered = entered(b, "h0")?;
    ensure!(entered["refused"] == serde_json::json!({}), "something was lost: {entered}");
    Ok(())
}

/// Host 1 takes one of three prefixes of a table.
fn reasons() -> Result<()> {
    const OTHER: &str = "10.90.0.0/16";
    fn v4_only(number: usize) -> Option<String> {
        (number == 1).then(|| format!("[\"{}\"]", net_v4(1)))
    }
    fn one_table(number: usize) -> Option<String> {
        let peer = 1 - number;
        let more = (number == 0).then(|| OTHER.to_owned());
        let all: Vec<_> = [net_v4(peer), net_v6(peer)].into_iter().chain(more).collect();
        Some(divert(peer, &all))
    }
    let network = Network::up(Plan { local: v4_only, diverts: one_table, ..Plan::routed() })?;
    let a = &network.hosts[0];
    until_diverts(a, "not_taken")?;
    let v6 = net_v6(1);
    for (prefix, words) in [
        (v6.as_str(), format!("{v6} is not in its link.local; add it there")),
        (OTHER, format!("{OTHER} is not in its link.local; add it there")),
        (&net_v4(1), format!("of which {v6}, {OTHER} are not in its link.local")),
    ] {
        let said = diverted(a, prefix)?["reason"].clone();
        ensure!(said.as_str().is_some_and(|said| said.contains(&words)), "{prefix}: {said}");
    }
    let said = a.words();
    ensure!(said.contains(&format!("not taken ({v6}, {OTHER} are not")), "{said}");
    Ok(())
}

fn made_again() -> Result<()> {
    let mut network = Network::up(Plan::routed())?;
    until_diverts(&network.hosts[0], "active")?;
    until_diverts(&network.hosts[1], "active")?;
    exchange(&network, 0, 1)?;
    let before = diverted_bytes(&network.hosts[0])?;
    network.disconnect_vms(0)?;
    until_diverts(&network.hosts[0], "no_interface")?;
    ensure!(diverted_bytes(&network.hosts[0])? >= before, "what was counted is forgotten");
    network.connect_vms(0)?;
    until_diverts(&network.hosts[0], "active")?;
    exchange(&network, 0, 1)?;
    let after = diverted_bytes(&network.hosts[0])?;
    ensure!(after > before + 2 * BYTES, "{before} bytes diverted before, {after} in all");
    Ok(())
}

/// Host 0 has a second VM behind another tap, in a network of number 50; only what it sends is
/// compressed.
fn two_interfaces() -> Result<()> {
    const OTHER: usize = 50;
    fn both(number: usize) -> Option<String> {
        (number == 0).then(|| {
            let nets = [net_v4(0), net_v6(0), net_v4(OTHER), net_v6(OTHER)];
            format!("{nets:?}")
        })
    }
    fn diverts(number: usize) -> Option<String> {
        if number == 1 {
            return Some(divert(0, &[net_v4(0), net_v6(0), net_v4(OTHER), net_v6(OTHER)]));
        }
        let first = divert(1, &[net_v4(1), net_v6(1)]);
        Some([first.clone(), first.replace(TAP, "tap1")].concat())
    }
    let network = Network::up(Plan { local: both, diverts, ..Plan::routed() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    // The tap is made while the link runs; rules may name it before.
    a.command(&["set", a.name(), "--compress", "zstd", "--port", "tap1"])?;
    let vm = network.net.host("other")?;
    let _relay = connect_routed(&a.netns, "tap1", &vm, OTHER)?;
    until_diverts(a, "active")?;
    until_diverts(b, "active")?;
    let compressed = || count(&a.status()?["compression"][0]["sent"], "bytes");
    exchange(&network, 0, 1)?;
    ensure!(compressed()? == 0, "the rule of tap1 met what came from tap0");
    let moved = AtomicU64::new(0);
    for at in [vm_v4(1), vm_v6(1)] {
        transfer::run(&vm, &b.vms[0], at, BYTES, &moved)?;
    }
    ensure!(compressed()? > 2 * BYTES, "{} bytes met the rule of tap1", compressed()?);
    let status = a.status()?;
    let taps: Vec<_> = (0..4).map(|row| &status["diverts"][row]["tap"]).collect();
    ensure!(taps[0] == taps[1] && taps[2] == taps[3] && taps[0] != taps[2], "{taps:?}");
    Ok(())
}

fn down() -> Result<()> {
    let network = Network::up(Plan { ordinary_way: true, ..Plan::routed() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    until_diverts(a, "active")?;
    until_diverts(b, "active")?;
    let tap = diverted(a, &net_v4(1))?["tap"].clone();
    let tap = tap.as_str().context("no tap")?;
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], vm_v4(1), 20 * BYTES, &moved));
        until_moved(&moved, BYTES)?;
        a.command(&["down", a.name()])?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    until_diverts(b, "peer_down")?;
    ensure!(a.netns.ip(&format!("link show {tap}")).is_err(), "{tap} is left");
    exchange(&network, 0, 1)
}

/// Two peers for one interface, and the prefix of one within that of the other.
fn longest() -> Result<()> {
    const ALL_V4: &str = "10.88.0.0/16";
    const ALL_V6: &str = "fd88::/16";
    fn nested(number: usize) -> Option<String> {
        (number == 0).then(|| {
            let rest = divert(1, &[ALL_V4.to_owned(), ALL_V6.to_owned()]);
            [rest, divert(2, &[net_v4(2), net_v6(2)])].concat()
        })
    }
    /// Host 1 is a way to everywhere.
    fn everywhere(number: usize) -> Option<String> {
        (number == 1).then(|| format!("[\"{ALL_V4}\", \"{ALL_V6}\"]"))
    }
    fn local(number: usize) -> Option<String> {
        // Local prefixes cannot be diverted: host 1 diverts nothing.
        everywhere(number)
    }
    fn diverts(number: usize) -> Option<String> {
        if number == 1 { Some(String::new()) } else { nested(number) }
    }
    let plan = Plan { hosts: 3, ordinary_way: true, diverts, local, ..Plan::routed() };
    let network = Network::up(plan)?;
    let a = &network.hosts[0];
    until_diverts(a, "active")?;
    until_diverts(&network.hosts[2], "active")?;
    exchange(&network, 0, 2)?;
    ensure!(diverted(a, ALL_V4)?["packets"] == 0, "{}", diverted(a, ALL_V4)?);
    ensure!(count(&diverted(a, &net_v4(2))?, "bytes")? > BYTES, "{}", diverted(a, &net_v4(2))?);
    exchange(&network, 0, 1)?;
    for prefix in [ALL_V4, ALL_V6] {
        ensure!(count(&diverted(a, prefix)?, "bytes")? > BYTES, "{}", diverted(a, prefix)?);
    }
    ensure!(entered(&network.hosts[1], "h0")?["refused"] == serde_json::json!({}), "refused");
    Ok(())
}

/// Host 0 diverts to more prefixes than host 1 has, and the test writes frames into its divert tap
/// that no hook would send.
fn foreign() -> Result<()> {
    fn vm_only(number: usize) -> Option<String> {
        Some(format!("[\"{}\"]", vm_v4(number)))
    }
    let plan = Plan { local: vm_only, ordinary_way: true, ..Plan::routed() };
    let network = Network::up(plan)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    until_diverts(a, "not_taken")?;
    let tap = diverted(a, &net_v4(1))?["tap"].clone();
    let tap = DivertTap::open(&a.netns, tap.as_str().context("no tap")?)?;
    let is_refused = |reason: &str, count: u64| {
        let what = format!("{count} frames are refused for {reason}");
        b.until(&what, |status| status["entry"]["peers"][0]["refused"][reason] == count)
    };
    tap.send(router_v4(1))?;
    is_refused("prefix", 1)?;
    tap.send(vm_v6(1))?;
    is_refused("prefix", 2)?;
    ensure!(entered(b, "h0")?["frames"] == 0, "let in: {}", entered(b, "h0")?);
    tap.send(vm_v4(1))?;
    b.until("the VM's frame is let in", |status| status["entry"]["peers"][0]["frames"] == 1)?;
    exchange(&network, 0, 1)
}

/// The VM of host 0 has a second address, which is not in `link.local`.
fn forged() -> Result<()> {
    const FORGED: [u8; 4] = [10, 77, 0, 9];
    let network = Network::up(Plan::routed())?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    until_diverts(a, "active")?;
    a.vms[0].ip("address add 10.77.0.9/32 dev eth0")?;
    let receiver = b.vms[0].run(|| Ok(UdpSocket::bind((vm_v4(1), 0))?))?;
    receiver.set_read_timeout(Some(Duration::from_secs(60)))?;
    let send = |from: IpAddr, text: &[u8]| -> Result<()> {
        let socket = a.vms[0].run(|| Ok(UdpSocket::bind((from, 0))?))?;
        socket.send_to(text, receiver.local_addr()?)?;
        Ok(())
    };
    send(FORGED.into(), b"forged")?;
    a.until("the forged packet is counted", |status| {
        let diverts = status["diverts"].as_array();
        diverts.is_some_and(|all| all.iter().any(|divert| divert["forged"].as_u64() >= Some(1)))
    })?;
    send(vm_v4(0), b"own")?;
    let mut text = [0; 16];
    let (bytes, from) = restarted(|| receiver.recv_from(&mut text))?;
    ensure!(&text[..bytes] == b"own" && from.ip() == vm_v4(0), "{from} comes out at the far host");
    Ok(())
}

/// A divert tap of a link, from the host's side.
struct DivertTap {
    socket: Socket,
    address: SockAddr,
}

impl DivertTap {
    fn open(netns: &Netns, name: &str) -> Result<Self> {
        let (socket, ifindex) = netns.run(|| {
            let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
            Ok((socket, nix::net::if_::if_nametoindex(name)?))
        })?;
        let mut storage = SockAddrStorage::zeroed();
        // SAFETY: a sockaddr_ll is plain data, and the storage larger.
        let to = unsafe { storage.view_as::<libc::sockaddr_ll>() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = ifindex as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the storage holds an address of this family and length.
        let address = unsafe { SockAddr::new(storage, length) };
        Ok(Self { socket, address })
    }

    /// A UDP packet without payload, from the VM's network.
    fn send(&self, to: IpAddr) -> Result<()> {
        let from = if to.is_ipv4() { vm_v4(0) } else { vm_v6(0) };
        let addresses = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Addresses::V4(from.octets(), to.octets()),
            (IpAddr::V6(from), IpAddr::V6(to)) => Addresses::V6(from.octets(), to.octets()),
            _ => anyhow::bail!("two families"),
        };
        let ethernet = Ethernet { source: [2; 6], destination: [2; 6], ..Ethernet::default() };
        let route = Route::new(ethernet, addresses);
        let frame = UdpFrame { route, source_port: 9, destination_port: 9 }.build(&[]);
        self.socket.send_to(&frame, &self.address).context("sending into a divert tap")?;
        Ok(())
    }
}

/// Host 1 is known by etcd alone. While it is not, IPv4 to its VM is dropped, and IPv6 has its
/// ordinary way. Host 2 gets the number that host 1 had.
fn of_etcd() -> Result<()> {
    let plan = Plan { hosts: 3, ordinary_way: true, ..Plan::routed() };
    let (mut network, _etcd) = membership::network(plan, 1, EtcdOptions::default())?;
    for (host, peer) in [(0, 1), (1, 0)] {
        let dropped = divert(peer, &[net_v4(peer)]) + "when_down = \"drop\"\n";
        let passed = divert(peer, &[net_v6(peer)]);
        network.edit_config(host, |text| [text, &dropped, &passed].concat())?;
    }
    network.hosts[0].start()?;
    for others in [0, 1] {
        let a = &network.hosts[0];
        a.until("the peer is not known", |status| {
            let diverts = status["diverts"].as_array().into_iter().flatten();
            diverts.clone().count() == 2
                && diverts.clone().all(|divert| {
                    let reason = divert["reason"].as_str().unwrap_or_default();
                    divert["state"] == "peer_down" && reason.contains("nor etcd names it")
                })
        })?;
        // Packets that the last exchange left on their way may have come until now.
        let before = diverted_bytes(a)?;
        let shown = a.command(&["status", a.name()])?;
        ensure!(shown.contains("there is no peer h1 now"), "{shown}");
        ensure!(a.vms[0].ping(vm_v4(1), 1).is_err(), "what is to be dropped has another way");
        transfer::run(&a.vms[0], &network.hosts[1].vms[0], vm_v6(1), BYTES, &AtomicU64::new(0))?;
        ensure!(diverted_bytes(a)? == before, "diverted to nobody");
        ensure!(count(&diverted(a, &net_v4(1))?, "missed")? > 0, "nothing was missed");

        network.hosts[1].start()?;
        let [a, b, _] = &network.hosts[..] else { unreachable!("three hosts") };
        until_diverts(a, "active")?;
        until_diverts(b, "active")?;
        exchange(&network, 0, 1)?;
        ensure!(diverted_bytes(a)? > before + 2 * BYTES, "it was not diverted");

        if others == 1 {
            break;
        }
        network.hosts[1].end();
        network.hosts[2].start()?;
        network.hosts[0].until("the other host is a peer", |status| {
            status["peers"].as_array().is_some_and(|peers| {
                peers.len() == 1 && peers[0]["name"] == "h2" && peers[0]["state"] == "up"
            })
        })?;
    }
    Ok(())
}
