//! A VM, or its QEMU, attacks: its own port's bounds stop it, and a VM beside it notices nothing.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::format::{ACK, SYN};
use vsnoop_testbed::raw_vm;
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::topology::{self, Side};

use crate::helper::{AttachedNetwork, Pair};
use crate::hold::{network_with_hold, until_acknowledged_early};
use crate::sandbox::{PORT, TapHost, vsnoop, vsnoop_in, wait_until};

/// More connections than a port has records for by default (`max_flows`), many times.
const FLOWS: u32 = 100_000;
/// Size of the hold that is filled.
const SMALL_HOLD: &str = "256K";
const SMALL_HOLD_BYTES: u64 = 256 << 10;
/// Size of the other VM's hold ([`network_with_hold`]).
const GOOD_HOLD_BYTES: u64 = 4 << 20;

pub fn trials() -> Vec<Trial> {
    trials![
        a_vm_that_floods_flows_takes_nothing_from_a_vm_beside_it,
        a_vm_that_never_acknowledges_fills_its_own_hold_only,
    ]
}

/// The port of a host in `stats`.
pub fn stats(host: &str, port: &str) -> Result<Value> {
    let json = vsnoop_in(host, ["stats", port, "--json"])?.json()?;
    Ok(json["ports"][0].clone())
}

pub fn count(stats: &Value, name: &str) -> Result<u64> {
    stats[name].as_u64().with_context(|| format!("no {name} in {stats}"))
}

/// A VM with a hold of 4 MiB, for which the host acknowledges early, and a connection to it.
pub fn good(role: &str) -> Result<(AttachedNetwork, Pair)> {
    let network = network_with_hold(role)?;
    let mut pair = network.connect()?;
    until_acknowledged_early(&network, &mut pair)?;
    Ok((network, pair))
}

/// Its transfers were exact ([`Pair::exchange`] compares bytes); they were acknowledged early, and
/// nothing of it was refused, taken or reset.
pub fn ensure_unharmed(good: &AttachedNetwork, early_before: u64) -> Result<()> {
    let stats = stats(good.topology.host.name(), topology::PORT)?;
    ensure!(count(&stats, "early_acks")? > early_before, "none was acknowledged early: {stats}");
    ensure!(count(&stats, "flows_refused")? == 0, "{stats}");
    ensure!(hold(good)?.0 == GOOD_HOLD_BYTES, "its hold is another one");
    good.expect_no_reset()
}

/// Segments of connection `number`: a SYN, an answer to one, data of one byte in the midst of a
/// connection that is on no record, with windows that open and close. Each has another peer.
fn segments(number: u32) -> [Vec<u8>; 4] {
    let [_, a, b, c] = number.to_be_bytes();
    let ethernet = Ethernet { source: [2; 6], destination: [4; 6], ..Ethernet::default() };
    let addresses = Addresses::V4([10, 66, 0, 2], [10, 128 | a, b, c]);
    let frame = TcpFrame::new(Route::new(ethernet, addresses), 80, 40_000);
    let segment = |source_port, flags, window| TcpFrame {
        source_port,
        flags,
        window,
        sequence: 7000,
        acknowledgment: 9001,
        ..frame
    };
    [
        segment(80, SYN, 0).build(&[]),
        segment(81, SYN | ACK, u16::MAX).build(&[]),
        segment(82, ACK, 0).build(b"x"),
        segment(82, ACK, 1).build(b"xy"),
    ]
}

fn flood(hostile: &TapHost) -> Result<()> {
    for number in 0..FLOWS {
        for frame in segments(number) {
            raw_vm::send(&hostile.tap, &frame)?;
        }
    }
    Ok(())
}

fn a_vm_that_floods_flows_takes_nothing_from_a_vm_beside_it() -> Result<()> {
    let (good, mut pair) = good("beside")?;
    let early = good.early_acks()?;
    let hostile = TapHost::new("floods")?;
    hostile.vsnoop(["attach", PORT, "--no-passive", "--hold", SMALL_HOLD])?.ok()?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            let flooded = flood(&hostile);
            is_over.store(true, Ordering::Relaxed);
            flooded
        });
        while !is_over.load(Ordering::Relaxed) {
            pair.exchange(300_000)?;
        }
        flooding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    // Its records stay for minutes: a new connection of the other VM finds room all the same.
    good.connect_to(5002)?.exchange(300_000)?;
    pair.exchange(300_000)?;
    ensure_unharmed(&good, early)?;
    let flooded = stats(hostile.netns.name(), PORT)?;
    let seen = count(&flooded, "from_vm_packets")?;
    ensure!(seen >= u64::from(FLOWS) * 4, "{seen} packets came: {flooded}");
    ensure!(count(&flooded, "flows_refused")? > 0, "its table was never full: {flooded}");
    let created = count(&flooded, "flows_created")?;
    ensure!(created < u64::from(FLOWS), "{created} records: nothing was refused");
    vsnoop(["off", "--all"])?.ok().map(drop)
}

/// Size and used bytes of the port's hold.
fn hold(network: &AttachedNetwork) -> Result<(u64, u64)> {
    let status = network.vsnoop(&["status", topology::PORT, "--json"])?;
    let hold = &status["ports"][0]["hold"];
    let bytes = |name: &str| hold[name].as_u64().with_context(|| format!("no {name}: {status}"));
    Ok((bytes("size_bytes")?, bytes("used_bytes")?))
}

/// Writes until the socket takes no more for the moment.
fn write_all_that_fits(pair: &mut Pair) -> Result<()> {
    pair.client.set_nonblocking(true)?;
    while let Ok(1..) = pair.client.write(&[7; 65_536]) {}
    Ok(())
}

fn a_vm_that_never_acknowledges_fills_its_own_hold_only() -> Result<()> {
    let (good, mut pair) = good("kind")?;
    let early = good.early_acks()?;
    let hostile = network_with_hold("stands")?;
    hostile.vsnoop(&["set", topology::PORT, "--hold", SMALL_HOLD, "--json"])?;
    let mut senders =
        (0..8).map(|n| hostile.connect_to(6000 + n)).collect::<Result<Vec<Pair>>>()?;
    for sender in &mut senders {
        sender.exchange(1000)?;
    }
    let frozen = Faults { freeze: Freeze::Now, ..Faults::default() };
    hostile.topology.set_guest_faults(Side::Vm, frozen);
    let mut most = 0;
    wait_until("its hold is nearly full", || {
        senders.iter_mut().try_for_each(write_all_that_fits)?;
        let (size, used) = hold(&hostile)?;
        ensure!(size == SMALL_HOLD_BYTES, "a hold of {size} bytes");
        most = most.max(used);
        ensure!(used <= size, "{used} bytes are used of {size}");
        Ok(used >= size / 4 * 3)
    })
    .with_context(|| format!("{most} bytes were used"))?;
    for _ in 0..20 {
        pair.exchange(300_000)?;
        let (size, used) = hold(&hostile)?;
        ensure!(used <= size, "{used} bytes are used of {size}");
    }
    ensure_unharmed(&good, early)?;
    // No connection is reset for it: the VM may stand still for want of a CPU.
    hostile.expect_no_reset()?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}
