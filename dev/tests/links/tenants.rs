//! One VM does not harm the others: forged source addresses, super-packets of tiny segments.
//!
//! VMs are taps that the test reads and writes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_packet::packet::Pool;
use vsnoop_packet::testing::SegmentBuilder;

use crate::raw_vm::{
    ATTACKER, BROADCAST, OTHER, OWNER, PATIENCE, frame, introduce, raw_vm, receive, send, send_with,
};
use crate::trial;
use vsnoop_testbed::hosts::{Network, Plan, start_all};
use vsnoop_testbed::net::{Offloads, TapOptions};
use vsnoop_testbed::wait::wait_until;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("tenants::a_forged_address_takes_nothing_from_its_owner", forged),
        trial("tenants::a_port_takes_only_the_sources_that_it_may_have", fixed),
        trial("tenants::a_neighbour_that_invents_addresses_takes_nothing_from_a_vm", invented),
        trial("tenants::a_port_with_a_quota_has_no_more_addresses", quota),
        trial("tenants::a_fixed_address_that_is_used_at_a_peer_is_named", moved),
        trial("tenants::tiny_segments_starve_nobody", tiny_segments),
        trial("tenants::tls::the_far_host_cuts_no_frame_into_tiny_segments", cut_there),
    ]
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

/// An attacker beside a VM sends frames from more addresses than the tables hold to one that is
/// known. Each frame to the VM, which is silent, still arrives, and nowhere else.
fn invented() -> Result<()> {
    const FRAMES: u32 = 1000;
    const FORGED_PER_FRAME: u32 = 10;
    let link = "addresses = 2048\n";
    let network = Network::up(Plan { hosts: 3, vms_per_host: 0, link, ..Plan::default() })?;
    let [a, b, c] = &network.hosts[..] else { unreachable!("three hosts") };
    let (vm, attacker) = (raw_vm(a, "raw0")?, raw_vm(a, "raw1")?);
    let (other, aside) = (raw_vm(b, "raw")?, raw_vm(c, "raw")?);
    introduce(&vm, &other, OWNER)?;
    introduce(&vm, &aside, OWNER)?;
    introduce(&other, &vm, OTHER)?;
    // The VM answers one frame, as in every conversation.
    for (from, to, frame) in
        [(&other, &vm, frame(OWNER, OTHER, 1)), (&vm, &other, frame(OTHER, OWNER, 2))]
    {
        send(from, &frame)?;
        receive(to, &frame, &[])?;
    }
    let mut packet = Pool::default().take();
    for number in 0..FRAMES {
        for step in 0..FORGED_PER_FRAME {
            let [_, x, y, z] = (FORGED_PER_FRAME * number + step).to_be_bytes();
            let forged = frame(OTHER, [6, 6, 6, x, y, z], number);
            send(&attacker, &forged)?;
            if step + 1 == FORGED_PER_FRAME {
                // Both links have learned from it.
                receive(&other, &forged, &[])?;
            }
        }
        let wanted = frame(OWNER, OTHER, 10 + number);
        send(&other, &wanted)?;
        receive(&vm, &wanted, &[]).with_context(|| format!("frame {number} to the VM"))?;
        while aside.read(&mut packet).context("read a frame")? {
            let is_of_vm = packet.frame()[..6] == OWNER;
            ensure!(!is_of_vm, "frame {number} was flooded to a third host");
        }
    }
    for host in [a, b] {
        let status = host.status()?;
        let displaced = status["table"]["displaced"].as_u64().context("displaced")?;
        ensure!(displaced > 0, "no table was full: {}", status["table"]);
    }
    let is_said = |status: &serde_json::Value| {
        status["problems"].to_string().contains("the table of addresses is full")
    };
    b.until("a full table is told", is_said)
}

fn quota() -> Result<()> {
    let mut network = Network::configured(Plan { vms_per_host: 0, ..Plan::default() })?;
    network.edit_config(0, |text| {
        // That of the bridge is one of them.
        text.replace("name = \"vsl0\"\n", "name = \"vsl0\"\naddresses = 8\n")
    })?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let (vm, other) = (raw_vm(a, "raw")?, raw_vm(b, "raw")?);
    introduce(&vm, &other, OWNER)?;
    introduce(&other, &vm, OTHER)?;
    for number in 0..100 {
        send(&vm, &frame(OTHER, [6, 6, 6, 0, 0, number], 0))?;
    }
    let wanted = frame(OTHER, OWNER, 1);
    send(&vm, &wanted)?;
    receive(&other, &wanted, &[])?;
    let status = a.status()?;
    let dropped = status["ports"][0]["dropped"]["addresses"].as_u64();
    ensure!(dropped >= Some(92), "dropped for their address: {dropped:?}");
    Ok(())
}

/// A VM has moved to another host, and the configuration has not.
fn moved() -> Result<()> {
    let mut network = Network::configured(Plan { vms_per_host: 0, ..Plan::default() })?;
    network.edit_config(0, |text| {
        text.replace("name = \"vsl0\"\n", "name = \"vsl0\"\nmac = \"02:00:00:00:00:01\"\n")
    })?;
    start_all(&mut network.hosts)?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let vm = raw_vm(b, "raw")?;
    let wanted = "02:00:00:00:00:01 is fixed to port vsl0, and frames from it come from peer h1";
    wait_until("the address is named", PATIENCE, || {
        send(&vm, &frame(BROADCAST, OWNER, 1))?;
        let status = a.status()?;
        let is_counted = status["dropped"]["fixed"].as_u64() >= Some(1);
        Ok(is_counted && status["problems"].to_string().contains(wanted))
    })
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
    let (header, mut packet) =
        SegmentBuilder { payload: 60_000, ..SegmentBuilder::default() }.partial(Some(1));
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

/// Over `tls` a super-packet travels whole, and the far host's kernel cuts it for a VM that takes
/// none: with the segment size of the sender into 60,000 packets of one byte.
fn cut_there() -> Result<()> {
    const PAYLOAD_BYTES: usize = 60_000;
    // Ethernet, IPv4, TCP with timestamps.
    const HEADERS_BYTES: usize = 14 + 20 + 32;
    let network = Network::up(Plan { vms_per_host: 0, transport: "tls", ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let offloads = Offloads { checksum: true, tso: false };
    let plain = b.netns.tap("plain", &TapOptions { offloads, ..TapOptions::default() })?;
    b.netns.add_port("br0", "plain")?;
    let hostile = raw_vm(a, "bad")?;
    introduce(&plain, &hostile, OTHER)?;
    introduce(&hostile, &plain, ATTACKER)?;
    let spec = SegmentBuilder { payload: PAYLOAD_BYTES, ..SegmentBuilder::default() };
    let (header, mut packet) = spec.partial(Some(1));
    packet[..6].copy_from_slice(&OTHER);
    packet[6..12].copy_from_slice(&ATTACKER);
    send_with(&hostile, header, &packet)?;
    let (mut segment, mut got, since) = (Pool::default().take(), 0, Instant::now());
    while got < PAYLOAD_BYTES {
        ensure!(since.elapsed() < PATIENCE, "{got} bytes came of {PAYLOAD_BYTES}");
        if !plain.read(&mut segment).context("read a frame")? {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let frame = segment.frame();
        if frame[6..12] == ATTACKER && frame[12..14] == [8, 0] {
            let bytes = frame.len() - HEADERS_BYTES;
            ensure!(bytes > 100 || got + bytes == PAYLOAD_BYTES, "a segment of {bytes} bytes");
            got += bytes;
        }
    }
    Ok(())
}
