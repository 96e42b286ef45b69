//! DSCP, ECN and flow labels of the datagrams that carry packets.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::trial;
use vsnoop_testbed::hosts::{Host, Network, Outside, PORT, Plan, inner_v4};
use vsnoop_testbed::net::Netns;

/// Expedited forwarding (RFC 3246) and ECT(0).
const EF_ECT0: i32 = 0xba;
const AT: u16 = 9999;
const PACKETS: u64 = 20;

pub fn trials() -> Vec<Trial> {
    [("ipv4", Outside::V4), ("ipv4_by_default", Outside::V4ByDefault), ("ipv6", Outside::V6)]
        .into_iter()
        .map(|(name, outside)| {
            let name = format!("marks::udp::dscp_and_ecn_are_carried_outside_by_{name}");
            trial(name, move || marks(outside))
        })
        .collect()
}

/// The packets that a rule with this comment has counted.
fn counted(netns: &Netns, comment: &str) -> Result<u64> {
    let rules = netns.nft("list table inet marks")?;
    let line = rules.lines().find(|line| line.contains(&format!("\"{comment}\"")));
    let count =
        line.and_then(|line| line.split("packets ").nth(1)?.split(' ').next()?.parse().ok());
    count.with_context(|| format!("no counter {comment}: {rules}"))
}

fn send(network: &Network) -> Result<()> {
    let from = &network.hosts[0].vms[0];
    let socket = from.run(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
    let class = EF_ECT0;
    // SAFETY: the value is a live int of the length given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_TOS,
            (&raw const class).cast(),
            size_of::<i32>() as u32,
        )
    };
    ensure!(set == 0, "IP_TOS: {}", std::io::Error::last_os_error());
    for _ in 0..PACKETS {
        socket.send_to(b"x", SocketAddr::new(inner_v4(1, 0), AT)).context("sending")?;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}

fn marks(outside: Outside) -> Result<()> {
    let network = Network::up(Plan { outside, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let ip = if outside == Outside::V6 { "ip6" } else { "ip" };
    let table = |hook: &str, rules: &str| {
        format!(
            "table inet marks {{\nchain c {{\ntype filter hook {hook} priority -150;\n{rules}\n}}\n}}"
        )
    };
    let marked = format!("udp dport {PORT} {ip} dscp ef {ip} ecn ect0");
    let label = match outside {
        Outside::V6 => "ip6 flowlabel 1-64 counter comment \"label\"",
        _ => "",
    };
    a.netns.nft(&table("output", &format!("{marked} counter comment \"outer\"\n{label}")))?;
    b.netns.nft(&table("prerouting", &format!("{marked} {ip} ecn set ce")))?;
    let inner = format!("udp dport {AT} ip dscp ef ip ecn ce counter comment \"inner\"");
    let all = format!("udp dport {AT} counter comment \"all\"");
    b.vms[0].nft(&table("input", &format!("{inner}\n{all}")))?;

    send(&network)?;
    // One datagram may carry several frames.
    until(|| Ok(counted(&a.netns, "outer")? > 0)).context("outside")?;
    // The first may be lost while neighbours are asked for.
    until(|| Ok(counted(&b.vms[0], "inner")? >= PACKETS - 2)).context("CE inside")?;
    let congested = b.peer("h0")?["congested"].as_u64();
    ensure!(congested >= Some(PACKETS - 2), "{congested:?}");

    // Off where it is unwanted, without a new start.
    let before = (counted(&a.netns, "outer")?, counted(&b.vms[0], "all")?);
    let more = "transport = \"udp\"\ndscp = false\necn = false\nflow_label = true\n";
    network.edit_config(0, |text| text.replace("transport = \"udp\"\n", more))?;
    let rekeys = |host: &Host| Ok::<_, anyhow::Error>(host.peer("h1")?["rekeys"].as_u64());
    let keys = rekeys(a)?;
    a.command(&["reload", a.name()])?;
    until(|| Ok(rekeys(a)? > keys)).context("a new session")?;
    let between = counted(&a.netns, "outer")?;
    send(&network)?;
    until(|| Ok(counted(&b.vms[0], "all")? >= before.1 + PACKETS - 2)).context("all arrive")?;
    ensure!(counted(&a.netns, "outer")? == between, "still marked");
    if outside == Outside::V6 {
        ensure!(counted(&a.netns, "label")? > 0, "no flow label");
    }
    ensure!(a.peer("h1")?["reconnects"] == 0, "it was disturbed");
    Ok(())
}

fn until(wanted: impl Fn() -> Result<bool>) -> Result<()> {
    let since = std::time::Instant::now();
    while !wanted()? {
        ensure!(since.elapsed() < std::time::Duration::from_secs(30), "not after 30 s");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(())
}
