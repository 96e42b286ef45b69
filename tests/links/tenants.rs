//! One VM does not harm the others: forged source addresses, super-packets of tiny segments.
//!
//! VMs are taps that the test reads and writes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vsnoop_packet::packet::Pool;
use vsnoop_packet::testing::Segment;
use vsnoop_packet::vnet::VirtioNetHdr;
use vsnoop_testbed::net::{Tap, TapOptions};

use crate::trial;
use vsnoop_testbed::hosts::{Host, Network, Plan, start_all};

const PATIENCE: Duration = Duration::from_secs(60);
/// For local experiments (IEEE 802): no stack answers it.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const OWNER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 3];
const BROADCAST: [u8; 6] = [0xff; 6];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("tenants::a_forged_address_takes_nothing_from_its_owner", forged),
        trial("tenants::a_port_takes_only_the_sources_that_it_may_have", fixed),
        trial("tenants::tiny_segments_starve_nobody", tiny_segments),
    ]
}

fn raw_vm(host: &Host, name: &str) -> Result<Tap> {
    let tap = host.netns.tap(name, &TapOptions::default())?;
    host.netns.add_port("br0", name)?;
    Ok(tap)
}

fn frame(destination: [u8; 6], source: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = [&destination[..], &source, &ETHER_TYPE, &number.to_be_bytes()].concat();
    frame.resize(64, 0x5a);
    frame
}

fn send(tap: &Tap, frame: &[u8]) -> Result<()> {
    send_with(tap, VirtioNetHdr::default(), frame)
}

fn send_with(tap: &Tap, header: VirtioNetHdr, frame: &[u8]) -> Result<()> {
    let mut packet = Pool::default().take();
    packet.fill(header, frame);
    ensure!(tap.write(&packet).context("write a frame")?, "no room for a frame");
    Ok(())
}

/// Reads until this frame comes; `refused` must not come before.
fn receive(tap: &Tap, wanted: &[u8], refused: &[Vec<u8>]) -> Result<()> {
    let mut packet = Pool::default().take();
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if !tap.read(&mut packet).context("read a frame")? {
            std::thread::sleep(Duration::from_micros(200));
        } else if packet.frame() == wanted {
            return Ok(());
        } else if refused.iter().any(|frame| frame == packet.frame()) {
            bail!("a frame came that must not: {:02x?}", &packet.frame()[..18]);
        }
    }
    bail!("a frame was lost: {:02x?}", &wanted[..18])
}

/// Sends until one arrives: bridges and links then know the source.
fn introduce(from: &Tap, to: &Tap, source: [u8; 6]) -> Result<()> {
    let mut packet = Pool::default().take();
    let since = Instant::now();
    let wanted = frame(BROADCAST, source, u32::MAX);
    while since.elapsed() < PATIENCE {
        send(from, &wanted)?;
        std::thread::sleep(Duration::from_millis(50));
        while to.read(&mut packet).context("read a frame")? {
            if packet.frame() == wanted {
                return Ok(());
            }
        }
    }
    bail!("no frame arrives from {source:02x?}")
}

/// An attacker on a third host sends frames with the owner's address. Each frame of the owner, and
/// each to it, still arrives.
fn forged() -> Result<()> {
    const FRAMES: u32 = 300;
    let network = Network::up(Plan { hosts: 3, vms_per_host: 0, ..Plan::default() })?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let (owner, other, attacker) = (raw_vm(a, "raw")?, raw_vm(b, "raw")?, raw_vm(c, "raw")?);
    introduce(&owner, &other, OWNER)?;
    introduce(&other, &owner, OTHER)?;
    introduce(&attacker, &other, ATTACKER)?;
    for number in 0..FRAMES {
        if number % 3 == 0 {
            let forgery = frame(OTHER, OWNER, 1_000_000 + number);
            send(&attacker, &forgery)?;
            // Its way is as long as the owner's: both links have learned from it.
            receive(&other, &forgery, &[])?;
        }
        let question = frame(OTHER, OWNER, 2 * number);
        send(&owner, &question)?;
        receive(&other, &question, &[]).with_context(|| format!("frame {number} of the owner"))?;
        let answer = frame(OWNER, OTHER, 2 * number + 1);
        send(&other, &answer)?;
        receive(&owner, &answer, &[]).with_context(|| format!("frame {number} to the owner"))?;
    }
    Ok(())
}

/// `mac` and `address` of a port.
fn fixed() -> Result<()> {
    let mut network = Network::configured(Plan { vms_per_host: 0, ..Plan::default() })?;
    network.edit_config(0, |text| {
        let sources = "name = \"vsl0\"\nmac = \"02:00:00:00:00:01\"\naddress = \"10.9.9.0/24\"\n";
        text.replace("name = \"vsl0\"\n", sources)
    })?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let (vm, other) = (raw_vm(a, "raw")?, raw_vm(b, "raw")?);
    let arp = |source: [u8; 6], address: [u8; 4]| {
        let head = [&BROADCAST[..], &source, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        let mut frame = [&head[..], &source, &address, &[0; 6], &[10, 9, 9, 77]].concat();
        frame.resize(64, 0);
        frame
    };
    let allowed = arp(OWNER, [10, 9, 9, 5]);
    let refused = vec![
        arp(ATTACKER, [10, 9, 9, 5]),
        arp(OWNER, [10, 9, 8, 5]),
        frame(BROADCAST, OWNER, 0),
        frame(BROADCAST, ATTACKER, 0),
    ];
    // The first frame may come before the far tap is a port of its bridge that forwards.
    let before = Instant::now();
    loop {
        send(&vm, &allowed)?;
        let mut packet = Pool::default().take();
        std::thread::sleep(Duration::from_millis(50));
        let mut arrived = false;
        while other.read(&mut packet).context("read a frame")? {
            arrived |= packet.frame() == allowed;
        }
        if arrived {
            break;
        }
        ensure!(before.elapsed() < PATIENCE, "an allowed frame does not arrive");
    }
    for frame in &refused {
        send(&vm, frame)?;
        send(&vm, &allowed)?;
        receive(&other, &allowed, &refused)?;
    }
    let status = a.status()?;
    let forged = &status["ports"][0]["dropped"]["forged"];
    ensure!(forged.as_u64() >= Some(refused.len() as u64), "forged frames counted: {forged}");
    Ok(())
}

/// A VM sends 64 KB super-packets of one-byte segments. The peer stays, and frames of another VM of
/// the host arrive.
fn tiny_segments() -> Result<()> {
    const SUPER_PACKETS: u32 = 40;
    let network = Network::up(Plan { vms_per_host: 0, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let (vm, hostile, other) = (raw_vm(a, "raw")?, raw_vm(a, "bad")?, raw_vm(b, "raw")?);
    introduce(&vm, &other, OWNER)?;
    introduce(&hostile, &other, ATTACKER)?;
    introduce(&other, &vm, OTHER)?;
    let (header, mut packet) = Segment { payload: 60_000, ..Segment::default() }.partial(Some(1));
    packet[..6].copy_from_slice(&OTHER);
    packet[6..12].copy_from_slice(&ATTACKER);
    for number in 0..SUPER_PACKETS {
        send_with(&hostile, header, &packet)?;
        let wanted = frame(OTHER, OWNER, number);
        send(&vm, &wanted)?;
        receive(&other, &wanted, &[]).with_context(|| format!("beside super-packet {number}"))?;
    }
    let peer = a.peer("h1")?;
    let number = |value: &serde_json::Value| value.as_u64().context("no number in the status");
    ensure!(number(&peer["reconnects"])? == 0, "the peer was lost: {peer}");
    ensure!(number(&peer["dropped"]["send"])? > 0, "what is lost is counted: {peer}");
    let wire_bytes = number(&peer["sent"]["wire_bytes"])?;
    ensure!(wire_bytes < u64::from(SUPER_PACKETS) * 100_000, "{wire_bytes} bytes were sent");
    Ok(())
}
