//! A link's memory does not grow with the traffic carried, the number of callers, or how often a
//! peer came back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_packet::builder::{Addresses, Ethernet, Route, UdpFrame};
use vsnoop_packet::format::UDP;
use vsnoop_packet::packet::Pool;
use vsnoop_packet::vnet::VirtioNetHdr;
use vsnoop_testbed::net::{Tap, TapOptions};

use crate::trial;
use vsnoop_testbed::hosts::{Host, Network, PORT, Plan, inner_v4, outer, start_all};
use vsnoop_testbed::soak::soaked;

const CHUNK_BYTES: usize = 256 << 10;
/// After this number of bytes buffers have their final size.
const WARM_UP_BYTES: u64 = 256 << 20;
const BYTES: u64 = 512 << 20;
const BYTES_SOAKED: u64 = 6 << 30;
const PATIENCE: Duration = Duration::from_secs(120);
/// More addresses, and more flows, than any table holds.
const WARM_UP_FLOWS: u32 = 30_000;
const FLOWS: u32 = 45_000;
const FLOWS_SOAKED: u32 = 90_000;
const ROUNDS: usize = 3;
/// Frames under way: fewer than a tap's queue holds.
const WINDOW: u64 = 128;
const STALL: Duration = Duration::from_secs(2);
/// After some of them buffers and stacks have been used that are used again.
const WARM_UP_RECONNECTS: u64 = 10;
const RECONNECTS: u64 = 40;
const RECONNECTS_SOAKED: u64 = 80;
/// Growth that the allocator alone may cause.
const GROWTH_KIB: u64 = 6 << 10;
/// Growth at each reconnection, on average: half of the memory of a session over UDP.
const RECONNECT_GROWTH_KIB: u64 = 32;
/// And growth by the allocator, whose threads may use more of its arenas than before.
const ARENAS_KIB: u64 = 1 << 10;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // A link has the same table, pools and compression over both: TLS is for `make soak`.
    for &transport in soaked(&["udp"][..], &["udp", "tls"]) {
        trials.push(trial(
            format!("memory::{transport}::gigabytes_leave_nothing_behind"),
            move || gigabytes(transport),
        ));
        trials.push(trial(
            format!("memory::{transport}::addresses_and_flows_without_number_are_bounded"),
            move || addresses_and_flows(transport),
        ));
        trials.push(trial(
            format!("memory::{transport}::a_peer_that_comes_back_again_and_again_is_one_peer"),
            move || comes_back(transport),
        ));
    }
    trials
}

/// Resident memory of both links, KiB.
fn rss_kib(hosts: &[Host]) -> Result<Vec<u64>> {
    hosts.iter().map(|host| host.in_proc_status("VmRSS")).collect()
}

fn is_flat(before_kib: &[u64], after_kib: &[u64]) -> Result<()> {
    let grown =
        before_kib.iter().zip(after_kib).any(|(before, after)| *after > before + GROWTH_KIB);
    ensure!(!grown, "memory grew from {before_kib:?} to {after_kib:?} KiB");
    Ok(())
}

fn gigabytes(transport: &'static str) -> Result<()> {
    let network = Network::up(Plan { transport, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    stream(a, b, WARM_UP_BYTES)?;
    let before = rss_kib(&network.hosts)?;
    let bytes = soaked(BYTES, BYTES_SOAKED);
    stream(a, b, bytes / 2)?;
    stream(b, a, bytes / 2)?;
    is_flat(&before, &rss_kib(&network.hosts)?)
}

/// Bytes from the first VM of one host to that of another, each chunk compared.
fn stream(from: &Host, to: &Host, bytes: u64) -> Result<()> {
    let at = if to.number() == 0 { inner_v4(0, 0) } else { inner_v4(1, 0) };
    let chunk: Vec<u8> = (0..CHUNK_BYTES).map(|at| (at * 31 + at / 251) as u8).collect();
    let listener = to.vms[0].run(|| Ok(TcpListener::bind(SocketAddr::new(at, 0))?))?;
    let address = listener.local_addr().context("asking where a socket listens")?;
    let mut sender = from.vms[0].run(|| Ok(TcpStream::connect_timeout(&address, PATIENCE)?))?;
    let (mut receiver, _) = listener.accept().context("accepting")?;
    sender.set_write_timeout(Some(PATIENCE))?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let chunks = bytes / CHUNK_BYTES as u64;
    std::thread::scope(|scope| {
        let sends = scope.spawn(|| (0..chunks).try_for_each(|_| sender.write_all(&chunk)));
        let mut got = vec![0; CHUNK_BYTES];
        for number in 0..chunks {
            receiver.read_exact(&mut got).with_context(|| format!("reading chunk {number}"))?;
            ensure!(got == chunk, "chunk {number} is another");
        }
        sends.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?.context("writing")
    })
}

/// Each frame comes from an address, and belongs to a flow, that was never seen; compression keeps
/// a context of each that it has room for.
fn addresses_and_flows(transport: &'static str) -> Result<()> {
    let link = "addresses = 8192\n";
    let network = Network::up(Plan { transport, vms_per_host: 0, link, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    for host in [a, b] {
        host.command(&["set", host.name(), "--compress", "zstd"])?;
    }
    let taps = [a, b].map(|host| -> Result<Tap> {
        let tap = host.netns.tap("raw", &TapOptions::default())?;
        host.netns.add_port("br0", "raw")?;
        Ok(tap)
    });
    let [from, to] = taps;
    let (from, to) = (from?, to?);
    let mut arrived = send_flows(&from, &to, 0, WARM_UP_FLOWS)?;
    let mut sent = WARM_UP_FLOWS;
    // The allocator may take more in one round; a leak does so in each.
    let mut is_settled = Ok(());
    for _ in 0..ROUNDS {
        let before = rss_kib(&network.hosts)?;
        let flows = soaked(FLOWS, FLOWS_SOAKED);
        arrived += send_flows(&from, &to, sent, sent + flows)?;
        sent += flows;
        is_settled = is_flat(&before, &rss_kib(&network.hosts)?);
        if is_settled.is_ok() {
            break;
        }
    }
    is_settled?;
    // A tap drops frames if its reader, or a bridge, is too slow.
    ensure!(arrived > (sent / 2).into(), "only {arrived} of {sent} arrived");
    for host in [a, b] {
        let learned = host.status()?["learned"].as_u64().context("learned")?;
        ensure!(learned <= 8192, "{learned} addresses are learned");
    }
    ensure!(a.peer("h1")?["state"] == "up", "{}", a.peer("h1")?);
    Ok(())
}

/// Sends a frame of each flow `first..last`, at most [`WINDOW`] ahead of those that arrived.
/// Returns how many arrived. A frame is given up when none has arrived for [`STALL`].
fn send_flows(from: &Tap, to: &Tap, first: u32, last: u32) -> Result<u64> {
    let mut pool = Pool::default();
    let (mut packet, mut read) = (pool.take(), pool.take());
    let (mut arrived, mut outstanding) = (0, 0);
    let mut wait_until_at_most = |outstanding: &mut u64, frames: u64| -> Result<()> {
        let mut since = Instant::now();
        while *outstanding > frames {
            let mut count = 0;
            while to.read(&mut read).context("reading a frame")? {
                count += u64::from(read.frame().get(23) == Some(&UDP));
            }
            arrived += count;
            *outstanding = outstanding.saturating_sub(count);
            if count > 0 {
                since = Instant::now();
            } else if since.elapsed() > STALL {
                *outstanding = 0;
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    };
    for flow in first..last {
        packet.fill(VirtioNetHdr::default(), &frame(flow));
        while !from.write(&packet).context("writing a frame")? {
            std::thread::sleep(Duration::from_micros(100));
        }
        outstanding += 1;
        wait_until_at_most(&mut outstanding, WINDOW)?;
    }
    wait_until_at_most(&mut outstanding, 0)?;
    Ok(arrived)
}

/// A UDP packet from a VM, an IPv4 address and a port of its own to all.
fn frame(flow: u32) -> Vec<u8> {
    let [_, a, b, c] = flow.to_be_bytes();
    let ethernet =
        Ethernet { source: [2, 0x55, 0, a, b, c], destination: [0xff; 6], ..Ethernet::default() };
    let route = Route::new(ethernet, Addresses::V4([10, a, b, c], [255; 4]));
    let source_port = u16::from_be_bytes([b, c]);
    let payload: Vec<_> = (0..600).map(|at| (at % 23) as u8 ^ c).collect();
    UdpFrame { route, source_port, destination_port: 12_345 }.build(&payload)
}

fn comes_back(transport: &'static str) -> Result<()> {
    let mut network = Network::configured(Plan { transport, ..Plan::default() })?;
    // Host 0 does not call: if both hosts call, a host keeps a second session for some seconds.
    let at = format!("address = \"{}:{PORT}\"\n", outer(1));
    network.edit_config(0, |text| text.replace(&at, ""))?;
    start_all(&mut network.hosts)?;
    let (left, right) = network.hosts.split_at_mut(1);
    let (a, b) = (&left[0], &mut right[0]);
    let mut again = |times: u64| -> Result<(u64, [u64; 2])> {
        for _ in 0..times {
            stream(a, b, 1 << 20)?;
            b.end();
            a.until("the peer is gone", |status| status["peers"][0]["state"] != "up")?;
            b.start()?;
            a.until_all_up()?;
            b.until_all_up()?;
        }
        Ok((a.in_proc_status("VmRSS")?, [a.descriptors()?, a.in_proc_status("Threads")?]))
    };
    let (before_kib, held) = again(WARM_UP_RECONNECTS)?;
    let more = soaked(RECONNECTS, RECONNECTS_SOAKED);
    let (after_kib, holds) = again(more)?;
    ensure!(holds == held, "descriptors and threads: {held:?} became {holds:?}");
    let most_kib = before_kib + ARENAS_KIB + more * RECONNECT_GROWTH_KIB;
    ensure!(after_kib <= most_kib, "memory grew from {before_kib} to {after_kib} KiB");
    let reconnects = a.peer("h1")?["reconnects"].as_u64().context("reconnects")?;
    ensure!(reconnects == WARM_UP_RECONNECTS + more, "{reconnects} reconnections");
    Ok(())
}
