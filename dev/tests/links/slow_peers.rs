//! A peer behind a slow line takes nothing from the others, and one that is called at another of
//! its addresses answers from there.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Network, Outside, PORT, Plan, inner_v4, start_all};
use vsnoop_testbed::wait::wait_until;

const PATIENCE: Duration = Duration::from_secs(60);
/// For the answer to one echo: a VM or a link may get no CPU for some seconds.
const ECHO_PATIENCE: Duration = Duration::from_secs(30);

pub fn trials() -> Vec<Trial> {
    let mut trials =
        vec![trial("slow_peers::udp::a_slow_line_costs_the_peer_of_a_fast_one_no_echo", slow_line)];
    for (name, outside) in
        [("ipv4", Outside::V4), ("ipv4_by_default", Outside::V4ByDefault), ("ipv6", Outside::V6)]
    {
        let name = format!("slow_peers::udp::answers_leave_from_the_address_called_by_{name}");
        trials.push(trial(name, move || second_address(outside)));
    }
    trials
}

/// Datagrams of a VM for a VM of the slow peer, ten times what its line takes.
fn flood(socket: &UdpSocket, to: SocketAddr, sent: &AtomicU64, ends: &AtomicBool) {
    const DATAGRAM_BYTES: usize = 1400;
    while !ends.load(Ordering::Relaxed) {
        for _ in 0..20 {
            // The VM's own queue may be full.
            if let Ok(bytes) = socket.send_to(&[0; DATAGRAM_BYTES], to) {
                sent.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The second host's line takes 10 Mb/s and has a queue without end. While it is flooded, each echo
/// of the third host is answered, and little stands in that queue.
fn slow_line() -> Result<()> {
    const FLOODED_BYTES: u64 = 32 << 20;
    const ECHOES: u16 = 300;
    const BOUND_BYTES: u64 = 512 << 10;
    let network = Network::up(Plan { hosts: 3, ..Plan::default() })?;
    let a = &network.hosts[0];
    let fast = inner_v4(2, 0);
    // Neighbours and forwarding tables are learned.
    for to in [fast, inner_v4(1, 0)] {
        wait_until("the VM answers", PATIENCE, || Ok(a.vms[0].ping(to, 1).is_ok()))?;
    }
    for to in [fast, inner_v4(1, 0)] {
        a.vms[0].ping_each(to, 10, ECHO_PATIENCE)?;
    }
    network.slow_down(1, "10mbit")?;
    let bind = || UdpSocket::bind("0.0.0.0:0").context("binding");
    let (socket, to) = (a.vms[0].run(bind)?, SocketAddr::new(inner_v4(1, 0), 9));
    let (sent, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| -> Result<()> {
        let _end = EndOnDrop(&ends);
        scope.spawn(|| flood(&socket, to, &sent, &ends));
        wait_until("the line is flooded", PATIENCE, || {
            Ok(sent.load(Ordering::Relaxed) >= FLOODED_BYTES)
        })?;
        a.vms[0].ping_each(fast, ECHOES, ECHO_PATIENCE)?;
        let standing = network.standing_bytes(1)?;
        ensure!(standing < BOUND_BYTES, "{standing} bytes stand before the slow line");
        Ok(())
    })?;
    let (slow, fast) = (a.peer("h1")?, a.peer("h2")?);
    ensure!(slow["state"] == "up" && slow["reconnects"] == 0, "the slow peer: {slow}");
    let dropped = |peer: &Value, reason: &str| peer["dropped"][reason].as_u64().unwrap_or(0);
    ensure!(dropped(&slow, "queue_full") + dropped(&slow, "queue_late") > 0, "drops: {slow}");
    ensure!(dropped(&fast, "queue_full") + dropped(&fast, "queue_late") == 0, "drops: {fast}");
    Ok(())
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The caller is behind a firewall that lets in only what answers its own datagrams. It calls the
/// other at its second address.
fn second_address(outside: Outside) -> Result<()> {
    const SECOND: usize = 150;
    let mut network = Network::configured(Plan { outside, ..Plan::default() })?;
    let line =
        |host: usize| format!("address = \"{}\"\n", SocketAddr::new(outside.address(host), PORT));
    network.edit_config(0, |text| text.replace(&line(1), &line(SECOND)))?;
    network.edit_config(1, |text| text.replace(&line(0), ""))?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    b.netns.add_address("uplink", outside.address(SECOND), outside.prefix_length())?;
    a.netns.nft(
        "table inet firewall {\n\
         chain in {\n\
         type filter hook input priority 0; policy accept;\n\
         iifname uplink ct state established,related accept\n\
         iifname uplink meta l4proto { tcp, udp } drop\n\
         }\n\
         }",
    )?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)?;
    let peer = a.peer("h1")?;
    let called = SocketAddr::new(outside.address(SECOND), PORT).to_string();
    ensure!(peer["address"] == called && peer["roams"] == 0, "it answers from elsewhere: {peer}");
    Ok(())
}
