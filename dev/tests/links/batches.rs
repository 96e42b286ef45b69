//! Datagrams that leave many at a time (UDP GSO), on a path where those fail.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Host, Network, Plan, inner_v4};

pub fn trials() -> Vec<Trial> {
    vec![trial("batches::where_they_fail_datagrams_leave_one_by_one_and_status_says_so", fail)]
}

/// Imitates a network card that segments wrongly: a datagram longer than a packet vanishes.
const VANISH: &str = "table inet card {
    chain in {
        type filter hook input priority 0; policy accept;
        iifname uplink meta l4proto udp meta length > 1600 drop
    }
}";

fn fail() -> Result<()> {
    let network = Network::up(Plan::default())?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    ensure!(a.peer("h1")?["udp_gso"] == "on", "{}", a.peer("h1")?);
    b.netns.nft(VANISH)?;
    let is_over = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        let bursts = scope.spawn(|| send_bursts(a, &is_over));
        let failed =
            a.until("batches have failed", |status| status["peers"][0]["udp_gso"] == "failed");
        is_over.store(true, Ordering::Relaxed);
        bursts.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?.and(failed)
    });
    failed?;
    let peer = a.peer("h1")?;
    ensure!(peer["udp_gso_again"].as_u64() > peer["since"].as_u64(), "{peer}");
    let text = a.command(&["status", a.name()])?;
    ensure!(text.contains("(UDP GSO) fail on the way"), "{text}");
    // Nothing is lost any more.
    let moved = AtomicU64::new(0);
    transfer::run(&a.vms[0], &b.vms[0], inner_v4(1, 0), 4 << 20, &moved)?;
    network.edit_config(0, |text| text.replacen("[link]\n", "[link]\ngso = false\n", 1))?;
    a.command(&["reload", a.name()])?;
    let peer = a.peer("h1")?;
    ensure!(peer["udp_gso"] == "off" && peer["udp_gso_again"].is_null(), "{peer}");
    Ok(())
}

/// Many datagrams at once from a VM to the other host's, again and again.
fn send_bursts(host: &Host, is_over: &AtomicBool) -> Result<()> {
    const DATAGRAMS: usize = 64;
    let socket = host.vms[0].run(|| UdpSocket::bind((inner_v4(0, 0), 0)).context("binding"))?;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..DATAGRAMS {
            // Refused where no neighbour answers, as batches vanish.
            let _ = socket.send_to(&[7; 1000], (inner_v4(1, 0), 9));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
