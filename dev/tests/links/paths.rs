//! The network between two hosts changes: large packets vanish, connections are cut.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use socket2::SockRef;
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::relay::Faults;

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{
    Host, Network, Outside, PORT, Path, Plan, inner_v4, inner_v6, start_all,
};
use vsnoop_testbed::net::check;

/// MTU of the narrow path; the hosts' interfaces take 1500.
const NARROW_BYTES: u64 = 1400;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("paths::udp::a_black_hole_is_found_and_filled_as_far_as_it_goes", black_hole),
        trial("paths::udp::a_path_that_shrinks_in_mid_transfer_delays_it", shrinks),
    ];
    trials.extend([
        trial("paths::udp::an_interface_that_shrinks_in_mid_transfer_delays_it", interface_shrinks),
        trial(
            "paths::udp::the_path_of_a_peer_that_calls_is_as_wide_as_its_interface",
            narrow_waits,
        ),
        trial("paths::udp::jumbo_frames_cross_to_a_peer_that_calls", jumbo),
    ]);
    for (name, outside) in [("ipv4", Outside::V4), ("ipv6", Outside::V6)] {
        let name = format!("paths::udp::{name}::forged_icmp_does_not_narrow_the_path");
        trials.push(trial(&name, move || forged(outside)));
    }
    trials.push(trial("paths::udp::a_narrow_path_lowers_the_mss_to_its_own_peer_only", own_mss));
    trials.push(trial("paths::tls::many_connections_come_up_over_a_long_path", long));
    let name = "paths::tls::a_path_that_shrinks_is_found_and_the_session_stays";
    trials.push(trial(name, tls_shrinks));
    let name = "paths::tls::a_firewall_that_forgets_interrupts_nothing";
    trials.push(trial(name, || forgetful("tls")));
    let name = "paths::tls::connections_that_are_cut_in_mid_transfer_are_made_anew";
    let cut = trial(name, || cut("tls"));
    trials.push(match not_to_be_cut() {
        Some(reason) => cut.with_kind(format!("skipped: {reason}")).with_ignored_flag(true),
        None => cut,
    });
    trials
}

/// The reason why this machine cannot reset other processes' connections. `ss --kill` itself gives
/// no error: it lists the sockets that it closed.
fn not_to_be_cut() -> Option<String> {
    let closed = || -> Result<bool> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (local, remote) = (stream.local_addr()?.to_string(), stream.peer_addr()?.to_string());
        let ss = Command::new("ss").args(["-tnHK", "src", &local, "dst", &remote]).output()?;
        Ok(!ss.stdout.is_empty())
    };
    match closed() {
        Ok(true) => None,
        Ok(false) => Some("this kernel closes no connections (CONFIG_INET_DIAG_DESTROY)".into()),
        Err(error) => Some(format!("ss -K does not run: {error}")),
    }
}

/// A stateful firewall forgets connections that are silent for some seconds, as NATs do after a
/// minute, and drops their packets from then on. Each connection of the link is still there after a
/// time in which no VM sends.
fn forgetful(transport: &'static str) -> Result<()> {
    const FORGOTTEN: Duration = Duration::from_secs(12);
    let mut network = Network::configured(Plan { transport, ..Plan::default() })?;
    let a = &network.hosts[0];
    a.netns.nft(
        "table inet firewall {\n\
         chain in {\n\
         type filter hook input priority 0; policy accept;\n\
         iifname uplink meta l4proto tcp ct state invalid drop\n\
         }\n\
         chain out {\n\
         type filter hook output priority 0; policy accept;\n\
         oifname uplink meta l4proto tcp ct state invalid drop\n\
         }\n\
         }",
    )?;
    a.netns.run(|| {
        for (key, value) in [("timeout_established", FORGOTTEN.as_secs()), ("loose", 0)] {
            let file = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_{key}");
            std::fs::write(&file, value.to_string()).with_context(|| file.clone())?;
        }
        Ok(())
    })?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    let transfer = || transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 8 << 20, &moved);
    transfer()?;
    std::thread::sleep(2 * FORGOTTEN);
    transfer()?;
    for (host, peer) in [(a, "h1"), (b, "h0")] {
        let peer = host.peer(peer)?;
        ensure!(peer["reconnects"] == 0, "connections were made anew: {peer}");
    }
    Ok(())
}

/// Handshakes of 32 connections one after another would take 96 round trips, longer than the
/// timeout.
fn long() -> Result<()> {
    const CONNECTIONS: u64 = 16;
    let plan = Plan { path: Path::Relay { realtime: false }, transport: "tls", ..Plan::default() };
    let mut network = Network::configured(plan)?;
    let line = format!("transport = \"tls\"\nconnections = {CONNECTIONS}\n");
    for host in 0..2 {
        network.edit_config(host, |text| text.replace("transport = \"tls\"\n", &line))?;
    }
    network.set_faults(&Faults { delay: Duration::from_millis(200), ..Faults::default() });
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    network.set_faults(&Faults::default());
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &AtomicU64::new(0))
}

fn narrow() -> Faults {
    Faults { longest_bytes: Some(NARROW_BYTES as usize), ..Faults::default() }
}

fn path_mtu_bytes(host: &Host, peer: &str) -> Result<u64> {
    host.peer(peer)?["path_mtu_bytes"].as_u64().context("no path MTU")
}

/// The status shows a path MTU above the minimum, and not above that of the path.
fn until_found(host: &Host) -> Result<()> {
    host.until("the path's MTU is found", |status| {
        let found = status["peers"][0]["path_mtu_bytes"].as_u64();
        found.is_some_and(|bytes| (NARROW_BYTES - 30..=NARROW_BYTES).contains(&bytes))
    })
}

fn black_hole() -> Result<()> {
    let mut network =
        Network::configured(Plan { path: Path::Relay { realtime: false }, ..Plan::default() })?;
    network.set_faults(&narrow());
    for host in &mut network.hosts {
        host.start()?;
    }
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for host in [a, b] {
        host.until_all_up()?;
    }
    let moved = AtomicU64::new(0);
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&a.vms[0], &b.vms[0], at, 4 << 20, &moved)?;
    }
    until_found(a)?;
    until_found(b)?;
    ensure!(network.lost() > 0, "nothing was too long: there was no black hole");
    let lost = network.lost();
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)?;
    // But for probes, of which a slow transfer meets more; its datagrams are thousands.
    ensure!(network.lost() < lost + 100, "{} packets were too long still", network.lost() - lost);
    Ok(())
}

fn shrinks() -> Result<()> {
    let network = Network::up(Plan { path: Path::Relay { realtime: false }, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for host in [a, b] {
        host.until("the whole of the path is used", |status| {
            status["peers"][0]["path_mtu_bytes"] == 1500
        })?;
    }
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 8 << 20)?;
        network.set_faults(&narrow());
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    ensure!(network.lost() > 0, "nothing was too long: the path did not shrink in time");
    for (host, peer) in [(a, "h1"), (b, "h0")] {
        until_found(host)?;
        let reconnects = host.peer(peer)?["reconnects"].clone();
        ensure!(reconnects == 0, "the session was given up {reconnects} times");
    }
    ensure!(path_mtu_bytes(a, "h1")? <= NARROW_BYTES);
    // The data went from a to b: its losses are those of this direction, at both ends.
    for (host, direction) in [(a, "lost_out"), (b, "lost_in")] {
        host.until("what was lost is counted", |status| {
            status["peers"][0][direction].as_u64() > Some(0)
        })?;
    }
    Ok(())
}

/// The session is made anew in short segments, once: the transfer goes on, and so does the session.
fn tls_shrinks() -> Result<()> {
    let path = Path::Relay { realtime: false };
    let plan = Plan { path, transport: "tls", dead_after: Some("5s"), ..Plan::default() };
    let network = Network::up(plan)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)?;
    network.set_faults(&narrow());
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 16 << 20, &moved)?;
    ensure!(network.lost() > 0, "nothing was too long: the path did not shrink");
    let said = |host: &Host| host.words().contains("segments of 1220 bytes");
    ensure!(said(a) || said(b), "it is not said: {}{}", a.words(), b.words());
    let reconnects = |host: &Host, peer: &str| {
        let now = host.peer(peer)?["reconnects"].as_u64();
        now.context("no reconnects")
    };
    // Either end may have called first, the other a second time.
    let before = [reconnects(a, "h1")?, reconnects(b, "h0")?];
    ensure!(before.iter().all(|count| (1..=4).contains(count)), "{before:?} sessions were lost");
    let lost = network.lost();
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 16 << 20, &moved)?;
    // But for what the control connection tries; the transfer's segments are thousands.
    ensure!(network.lost() < lost + 100, "{} packets were too long still", network.lost() - lost);
    let after = [reconnects(a, "h1")?, reconnects(b, "h0")?];
    ensure!(after == before, "{after:?} sessions were lost, {before:?} before");
    Ok(())
}

/// The path to the third host is narrow.
fn own_mss() -> Result<()> {
    let mut network = Network::configured(Plan { hosts: 3, ..Plan::default() })?;
    network.hosts[2].netns.set_mtu("uplink", NARROW_BYTES as usize)?;
    start_all(&mut network.hosts)?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let is = |peer: &str, mtu_bytes: RangeInclusive<u64>| {
        a.until(&format!("the MTU of the path to {peer} is found"), |status| {
            let mut peers = status["peers"].as_array().into_iter().flatten();
            let found = peers.find(|one| one["name"] == peer);
            found
                .and_then(|peer| peer["path_mtu_bytes"].as_u64())
                .is_some_and(|bytes| mtu_bytes.contains(&bytes))
        })
    };
    is("h1", 1500..=1500)?;
    is("h2", NARROW_BYTES - 30..=NARROW_BYTES)?;
    let mss = |to: &Host| -> Result<u32> {
        let at = SocketAddr::new(inner_v4(to.number(), 0), 0);
        let listener = to.vms[0].run(|| Ok(TcpListener::bind(at)?))?;
        let address = listener.local_addr()?;
        let _caller = a.vms[0].run(|| Ok(TcpStream::connect_timeout(&address, PATIENCE)?))?;
        let (accepted, _) = listener.accept()?;
        Ok(SockRef::from(&accepted).tcp_mss()?)
    };
    let (wide, narrow) = (mss(b)?, mss(c)?);
    ensure!(wide >= narrow + 90, "an MSS of {wide} to the wide path, {narrow} to the narrow one");
    Ok(())
}

fn until_path_mtu(host: &Host, bytes: u64) -> Result<()> {
    host.until(&format!("the path's MTU is {bytes}"), |status| {
        status["peers"][0]["path_mtu_bytes"] == bytes
    })
}

/// ICMP messages say that the path takes 552 bytes. A host that has seen no datagram of the link
/// can write them: it guesses addresses and ports. The kernel of the host believes them, the link
/// does not, also one that begins afterwards.
fn forged(outside: Outside) -> Result<()> {
    const MESSAGES: usize = 1000;
    let mut network = Network::up(Plan { outside, ..Plan::default() })?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&mut left[0], &right[0]);
    until_path_mtu(a, 1500)?;
    let (to, from) = (outside.address(0), outside.address(1));
    let (message, bytes) = match (to, from) {
        (IpAddr::V4(to), IpAddr::V4(from)) => (fragmentation_needed(to, from), NEEDED_BYTES.into()),
        (IpAddr::V6(to), IpAddr::V6(from)) => (packet_too_big(to, from), TOO_BIG_BYTES),
        _ => bail!("two families"),
    };
    let socket = b.netns.run(|| {
        let (domain, protocol) = match to {
            IpAddr::V4(_) => (socket2::Domain::IPV4, socket2::Protocol::ICMPV4),
            IpAddr::V6(_) => (socket2::Domain::IPV6, socket2::Protocol::ICMPV6),
        };
        Ok(socket2::Socket::new(domain, socket2::Type::RAW, Some(protocol))?)
    })?;
    for _ in 0..MESSAGES {
        let to = SocketAddr::new(to, 0).into();
        socket.send_to(&message, &to).context("sending a forged message")?;
    }
    let route = check(a.netns.command("ip").args(["route", "get", &from.to_string()]))?;
    ensure!(route.contains(&format!("mtu {bytes}")), "the host does not believe it: {route}");
    until_path_mtu(a, 1500)?;
    a.kill();
    a.start()?;
    a.until_all_up()?;
    until_path_mtu(a, 1500)
}

/// The MTU of [`fragmentation_needed`].
const NEEDED_BYTES: u16 = 552;
/// The MTU of [`packet_too_big`]: less is none of IPv6.
const TOO_BIG_BYTES: u32 = 1280;

/// An ICMP message of type 3, code 4 (RFC 1191), about a datagram between two links.
fn fragmentation_needed(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mtu = NEEDED_BYTES.to_be_bytes();
    let mut message = vec![3, 4, 0, 0, 0, 0, mtu[0], mtu[1]];
    message.extend([0x45, 0, 5, 0xdc, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend(from.octets());
    message.extend(to.octets());
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) + (folded >> 16)) as u16
    };
    let header = sum(&message[8..28]).to_be_bytes();
    message[18..20].copy_from_slice(&header);
    let port = PORT.to_be_bytes();
    message.extend([port[0], port[1], port[0], port[1], 5, 0xc8, 0, 0]);
    let whole = sum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&whole);
    message
}

/// An ICMPv6 message of type 2 (RFC 4443) about an echo: that needs no guess of ports to be
/// believed, and its route is the links', too. The kernel fills in the checksum.
fn packet_too_big(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![2, 0, 0, 0];
    message.extend(TOO_BIG_BYTES.to_be_bytes());
    message.extend([0x60, 0, 0, 0, 5, 0xb4, 58, 64]);
    message.extend(from.octets());
    message.extend(to.octets());
    message.extend([128, 0, 0, 0, 0, 1, 0, 1]);
    message
}

/// Here the host itself says that datagrams are too long.
fn interface_shrinks() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    until_path_mtu(a, 1500)?;
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 64 << 20, &moved));
        transfer::until_moved(&moved, 8 << 20)?;
        a.netns.set_mtu("uplink", NARROW_BYTES as usize)?;
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    until_path_mtu(a, NARROW_BYTES)?;
    let peer = a.peer("h1")?;
    ensure!(peer["dropped"]["send"].as_u64() > Some(0), "the host refused nothing: {peer}");
    ensure!(peer["reconnects"] == 0, "the session was given up");
    Ok(())
}

/// The MTU of its interface is used, although the peer's address is not configured.
fn narrow_waits() -> Result<()> {
    const PPPOE_BYTES: usize = 1492;
    let mut network = Network::configured(Plan::default())?;
    network.let_wait(0, 1)?;
    network.hosts[0].netns.set_mtu("uplink", PPPOE_BYTES)?;
    start_all(&mut network.hosts)?;
    until_path_mtu(&network.hosts[0], PPPOE_BYTES as u64)
}

fn jumbo() -> Result<()> {
    const JUMBO_BYTES: usize = 9000;
    let mut network = Network::configured(Plan::default())?;
    network.let_wait(0, 1)?;
    network.set_outer_mtu(JUMBO_BYTES)?;
    for host in 0..2 {
        let line = format!("[link]\nmtu = {JUMBO_BYTES}\n");
        network.edit_config(host, |text| text.replacen("[link]\n", &line, 1))?;
        let host = &network.hosts[host];
        host.vms[0].set_mtu("eth0", JUMBO_BYTES)?;
        for device in ["vm0", "br0"] {
            host.netns.set_mtu(device, JUMBO_BYTES)?;
        }
    }
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for host in [a, b] {
        until_path_mtu(host, JUMBO_BYTES as u64)?;
    }
    let moved = AtomicU64::new(0);
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&a.vms[0], &b.vms[0], at, 8 << 20, &moved)?;
    }
    // Datagrams of one frame each, as large as the VMs' interfaces take.
    for (from, to) in [(a, b), (b, a)] {
        let bind = |host: &Host| {
            let at = SocketAddr::new(inner_v4(host.number(), 0), 0);
            host.vms[0].run(|| UdpSocket::bind(at).context("binding"))
        };
        let (sender, receiver) = (bind(from)?, bind(to)?);
        receiver.set_read_timeout(Some(PATIENCE)).context("bounding reads")?;
        let mut read = vec![0; JUMBO_BYTES];
        for number in 0..100 {
            let sent: Vec<_> = (0..JUMBO_BYTES - 28).map(|at| (at * 7 + number) as u8).collect();
            sender.send_to(&sent, receiver.local_addr()?).context("sending")?;
            let length = restarted(|| receiver.recv(&mut read)).context("receiving")?;
            ensure!(read[..length] == sent, "datagram {number} is another one");
        }
    }
    Ok(())
}

/// One connection first, then all.
fn cut(transport: &'static str) -> Result<()> {
    let network = Network::up(Plan { transport, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    // Calls that crossed have made two sessions, one of which retires.
    connections(a)?;
    let [before_a, before_b] = [sessions(&a.peer("h1")?), sessions(&b.peer("h0")?)];
    let until_session = |number: u64| -> Result<()> {
        for (host, before) in [(a, before_a), (b, before_b)] {
            host.until("each cut has ended a session", |status| {
                let peer = &status["peers"][0];
                peer["state"] == "up" && sessions(peer) >= before + number
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 64 << 20, &moved));
        for (after, count, cuts) in [(8 << 20, 1, 0), (32 << 20, usize::MAX, 1)] {
            transfer::until_moved(&moved, after)?;
            // Those of a session that is still being made are no session that is cut.
            until_session(cuts)?;
            cut_connections(a, count)?;
        }
        running.join().map_err(|_| anyhow::anyhow!("the transfer panicked"))?
    })?;
    until_session(2)
}

/// Sessions that a peer has had in the place of another. One that comes before the end of the last
/// was noticed replaces it.
fn sessions(peer: &Value) -> u64 {
    ["reconnects", "rekeys"].iter().filter_map(|count| peer[count].as_u64()).sum()
}

/// Four connections, by default, each for one direction of two.
const CONNECTIONS: usize = 8;

fn ss(host: &Host, arguments: &[&str]) -> Result<String> {
    let output = host.netns.command("ss").args(arguments).output().context("running ss")?;
    ensure!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Resets up to `count` connections of a host's link as the kernel does.
fn cut_connections(host: &Host, count: usize) -> Result<()> {
    for (local, remote) in connections(host)?.iter().take(count) {
        ss(host, &["-tnHK", "src", local, "dst", remote])?;
    }
    Ok(())
}

/// Both ends of the connections of a host's link, once there are those of one session.
fn connections(host: &Host) -> Result<Vec<(String, String)>> {
    let port = format!(":{PORT}");
    let ours = ["state", "established", "(", "sport", "=", &port, "or", "dport", "=", &port, ")"];
    // Bytes that wait, here and there, and the two ends.
    let ends = |line: &str| {
        let mut words = line.split_whitespace().skip(2).map(str::to_owned);
        Some((words.next()?, words.next()?))
    };
    let since = Instant::now();
    loop {
        let connections: Vec<_> =
            ss(host, &[&["-tnH"][..], &ours].concat())?.lines().filter_map(ends).collect();
        if connections.len() == CONNECTIONS {
            return Ok(connections);
        }
        ensure!(since.elapsed() < PATIENCE, "{} connections, not {CONNECTIONS}", connections.len());
        std::thread::sleep(Duration::from_millis(5));
    }
}
