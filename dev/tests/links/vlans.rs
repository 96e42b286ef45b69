//! VLAN tags are the VMs' own: frames with one or two of them arrive with them, unchanged.
//!
//! This kernel has no VLAN devices. A VM is a tap that the test reads and writes, or one behind a
//! [`Relay`] that puts tags on and takes them off, so that whole connections cross the link in a
//! VLAN.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_packet::format::Tag;
use vsnoop_packet::packet::Pool;
use vsnoop_packet::vnet::VirtioNetHdr;
use vsnoop_testbed::net::{Netns, Tap, TapOptions};
use vsnoop_testbed::relay::{Relay, RelayOptions};

use crate::{transfer, trial};
use vsnoop_testbed::hosts::{Host, Network, Plan, inner_v4, inner_v6};

/// For local experiments (IEEE 802): no stack answers it.
const ETHER_TYPE: u16 = 0x88b5;
const BROADCAST: [u8; 6] = [0xff; 6];
const PATIENCE: Duration = Duration::from_secs(120);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in ["udp", "tls"] {
        trials
            .push(trial(format!("vlans::{transport}::tags_arrive_as_they_were_sent"), move || {
                frames(transport)
            }));
        for (word, tags) in [
            ("one_tag", vec![Tag::customer(77)]),
            ("two_tags", vec![Tag::service(9), Tag::customer(77)]),
        ] {
            trials.push(trial(format!("vlans::{transport}::connections_with_{word}"), move || {
                connections(transport, &tags)
            }));
        }
    }
    trials
}

/// Priority, drop eligibility and id are all of a tag.
fn frames(transport: &'static str) -> Result<()> {
    const TAGS: [&[[u16; 2]]; 6] = [
        &[],
        &[[0x8100, 0x0005]],
        &[[0x8100, 0xefff]],
        // A priority without a VLAN.
        &[[0x8100, 0xa000]],
        &[[0x88a8, 0x7064], [0x8100, 0x3005]],
        &[[0x8100, 0x0064], [0x8100, 0x0005]],
    ];
    let network = Network::up(Plan { transport, vms_per_host: 0, ..Plan::default() })?;
    let taps = [raw_vm(&network.hosts[0])?, raw_vm(&network.hosts[1])?];
    let mac = |end: usize| [2, 0, 0, 0, 0, 1 + end as u8];
    let mut number = 0;
    for tags in TAGS {
        // Flooded, then to an address that was learned, in this VLAN.
        for (from, to, destination) in
            [(0, 1, BROADCAST), (1, 0, BROADCAST), (0, 1, mac(1)), (1, 0, mac(0))]
        {
            for payload_bytes in [46, 1500] {
                number += 1;
                let sent = frame(destination, mac(from), tags, number, payload_bytes);
                arrives(&taps[from], &taps[to], &sent)
                    .with_context(|| format!("{tags:04x?}, {payload_bytes} bytes"))?;
            }
        }
    }
    Ok(())
}

/// A VM whose frames are the test's.
fn raw_vm(host: &Host) -> Result<Tap> {
    let tap = host.netns.tap("raw", &TapOptions::default())?;
    host.netns.add_port("br0", "raw")?;
    Ok(tap)
}

fn frame(
    destination: [u8; 6],
    source: [u8; 6],
    tags: &[[u16; 2]],
    number: u32,
    payload_bytes: u32,
) -> Vec<u8> {
    let mut frame = [destination, source].concat();
    let words = tags.iter().flatten().chain(&[ETHER_TYPE]);
    words.for_each(|word| frame.extend(word.to_be_bytes()));
    frame.extend(number.to_be_bytes());
    frame.extend((4..payload_bytes).map(|at| (at * 7 + number) as u8));
    frame
}

/// Sends a frame until exactly this one is read at the other end.
fn arrives(from: &Tap, to: &Tap, sent: &[u8]) -> Result<()> {
    let mut pool = Pool::default();
    let (mut packet, mut read) = (pool.take(), pool.take());
    packet.fill(VirtioNetHdr::default(), sent);
    let since = Instant::now();
    let mut others: Vec<Vec<u8>> = Vec::new();
    loop {
        ensure!(from.write(&packet).context("writing a frame")?, "no room for a frame");
        let again = Instant::now() + Duration::from_millis(200);
        while Instant::now() < again {
            if !to.read(&mut read).context("reading a frame")? {
                std::thread::sleep(Duration::from_millis(1));
            } else if read.frame() == sent {
                return Ok(());
            } else if others.len() < 4 && is_ours(read.frame()) {
                others.push(read.frame()[..read.frame().len().min(32)].to_vec());
            }
        }
        ensure!(since.elapsed() < PATIENCE, "it did not arrive; these did: {others:02x?}");
    }
}

/// Whether the test sent this frame: bridges send frames of their own.
fn is_ours(frame: &[u8]) -> bool {
    frame.windows(2).take(24).any(|word| word == ETHER_TYPE.to_be_bytes())
}

/// A VM whose host puts it into a VLAN, which it does not see.
struct Tagged {
    _relay: Relay,
    netns: Netns,
}

fn tagged_vm(network: &Network, number: usize, tags: &[Tag]) -> Result<Tagged> {
    let (host, netns) = (&network.hosts[number].netns, network.net.host(&format!("t{number}"))?);
    let options = RelayOptions { right_tags: tags.to_vec(), ..RelayOptions::default() };
    let relay = netns.relay("eth0", host, "tagged", &TapOptions::default(), &options)?;
    host.add_port("br0", "tagged")?;
    netns.up_with("eth0", &[(inner_v4(number, 0), 24), (inner_v6(number, 0), 64)])?;
    Ok(Tagged { _relay: relay, netns })
}

fn connections(transport: &'static str, tags: &[Tag]) -> Result<()> {
    let network = Network::up(Plan { transport, vms_per_host: 0, ..Plan::default() })?;
    let (from, to) = (tagged_vm(&network, 0, tags)?, tagged_vm(&network, 1, tags)?);
    let moved = AtomicU64::new(0);
    for at in [inner_v4(1, 0), inner_v6(1, 0)] {
        transfer::run(&from.netns, &to.netns, at, 8 << 20, &moved)
            .with_context(|| format!("to {at}"))?;
    }
    Ok(())
}
