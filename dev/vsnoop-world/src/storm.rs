//! Random scenarios: many faults of a VM, its connection, the network, the engine and the port at
//! the same time.
//!
//! All randomness comes from a seed. The world is hostile for a while, then calm, so that each
//! connection can end.

use fastrand::Rng;
use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::network::Network;

use crate::cases::{end, incast, machine};
use crate::guest::{Kind, Link};
use crate::host::Vcpus;
use crate::scenario::{Act, Connection, Machine, Scenario};
use crate::schedule::Schedule;

/// How long the storm lasts, and how long everything may take, ms.
const STORM_MS: u64 = 3_000;
const PATIENCE_MS: u64 = 900_000;

/// One storm in eight has several senders behind a last hop, and incast control.
const INCAST: u32 = 8;
/// In one storm in this many a VM that sleeps when it has nothing to do misses wake-ups.
const MISS: u32 = 8;
/// In one storm in this many the VM sends, and its connections are split.
const SPLIT: u32 = 4;
/// In one storm in this many the VM moves to another port of the bridge.
const MOVE: u32 = 8;

fn one_in(rng: &mut Rng, many: u32) -> bool {
    rng.u32(0..many) == 0
}

/// A rate that is zero half of the time, so that both calm and stormy runs occur.
fn rate(rng: &mut Rng, most: u32) -> u32 {
    if rng.bool() { 0 } else { rng.u32(1..=most) }
}

fn link(rng: &mut Rng) -> Network {
    Network {
        delay_us: [50, 500, 5_000][rng.usize(0..3)],
        jitter_us: if rng.bool() { 0 } else { rng.u64(1..2_000) },
        loss: rate(rng, 40),
        duplicate: rate(rng, 30),
        corrupt: rate(rng, 20),
        reorder: rate(rng, 40),
        congestion: 0,
    }
}

fn schedule(rng: &mut Rng) -> Schedule {
    match rng.u32(0..4) {
        0 => Schedule::Always,
        1 => Schedule::Once { at: rng.u64(0..200), stop: rng.u64(1..2_000) },
        _ => {
            let period = rng.u64(20..500);
            Schedule::Periodic { from: rng.u64(0..100), period, stop: rng.u64(1..period) }
        }
    }
}

/// The application and the buffers of the VM's end.
fn guest_end(rng: &mut Rng, kind: Kind) -> EndSettings {
    let bytes = [0, 200, 50_000, 300_000][rng.usize(0..4)];
    let mut guest = end(rng, bytes);
    guest.rcvbuf = match rng.u32(0..3) {
        0 => 65_535,
        1 => rng.u64(3_000..20_000),
        _ if kind == Kind::Linux || kind == Kind::Lwip => rng.u64(20_000..250_000),
        _ => 65_536,
    };
    if one_in(rng, 3) {
        (guest.read, guest.read_gap_ms) = (rng.u64(500..20_000), rng.u64(1..20));
    }
    if rng.bool() {
        (guest.writes, guest.write_gap_ms) = (rng.u64(1..20), rng.u64(1..60));
    }
    guest.closes_last = rng.bool();
    guest.delayed_ack = !one_in(rng, 4);
    guest
}

/// Actions of the operator, some of them in mid-transfer.
fn acts(rng: &mut Rng, attached: bool) -> Vec<(u64, Act)> {
    let mut acts = Vec::new();
    if !attached {
        acts.push((rng.u64(1..150), Act::Attach));
    }
    for _ in 0..rate(rng, 3) {
        let (at, later) = (rng.u64(1..400), rng.u64(1..400));
        let (first, second) =
            if rng.bool() { (Act::Pause, Act::Resume) } else { (Act::Detach, Act::Attach) };
        acts.extend([(at, first), (at + later, second)]);
    }
    acts.sort_by_key(|(at, _)| *at);
    acts
}

/// The VM is rolled back by up to 300 ms.
fn roll_back(rng: &mut Rng, acts: &mut Vec<(u64, Act)>) {
    let at = rng.u64(0..400);
    acts.extend([(at, Act::Save), (at + rng.u64(1..300), Act::RollBack)]);
}

/// The VM sends, its connections are split, and the processes for that are killed.
fn split(rng: &mut Rng, machine: &mut Machine, connections: &mut [Connection]) {
    machine.downloads = true;
    for connection in connections {
        // Tags are not for sockets.
        connection.vlan = None;
        connection.guest.bytes = [100_000, 300_000, 1_000_000][rng.usize(0..3)];
        connection.sender.rcvbuf = [65_535, 300_000, 1_000_000][rng.usize(0..3)];
        connection.sender.closes_last = !one_in(rng, 4);
        connection.guest.closes_last &= !connection.sender.closes_last;
        if one_in(rng, 3) {
            (connection.guest.writes, connection.guest.write_gap_ms) = (3, rng.u64(100..4_000));
        }
    }
    for _ in 0..rate(rng, 3) {
        let act = [Act::KillSplitter, Act::KillSplitter, Act::KillKeeper, Act::KillSplitting];
        machine.acts.push((rng.u64(50..2_000), act[rng.usize(0..4)]));
    }
    machine.acts.sort_by_key(|(at, _)| *at);
    machine.splitter_crashes = if one_in(rng, 3) { rng.u32(1..300) } else { 0 };
}

/// A path behind the VM.
fn leg(rng: &mut Rng) -> Link {
    Link {
        mbps: rng.u64(5..200),
        queue: rng.u64(32..256) << 10,
        delay_ns: rng.u64(0..50) * 1_000_000,
        mtu: None,
    }
}

/// The storm of this receiver and seed.
pub fn scenario(kind: Kind, seed: u64) -> Scenario {
    let rng = &mut Rng::with_seed(seed);
    let bytes = [0, 1_000, 30_000, 200_000, 600_000][rng.usize(0..5)];
    let mut sender = end(rng, bytes);
    sender.closes_last = false;
    sender.timestamps = !one_in(rng, 4);
    sender.sack = !one_in(rng, 4);
    sender.tiny = rate(rng, 50);
    let mut guest = guest_end(rng, kind);
    if kind == Kind::Linux {
        guest.timestamps = !one_in(rng, 4);
        guest.sack = !one_in(rng, 4);
        guest.scale = (!one_in(rng, 5)).then(|| rng.u8(0..10));
    }
    if rng.bool() {
        (sender.writes, sender.write_gap_ms) = (rng.u64(1..10), rng.u64(1..60));
    }
    let connection = Connection {
        vm: 0,
        ipv6: kind != Kind::Smol && one_in(rng, 3),
        vlan: (kind != Kind::Smol && one_in(rng, 4)).then_some(7),
        is_asymmetric: one_in(rng, 4),
        vm_opens: kind != Kind::Smol && one_in(rng, 3),
        sender,
        guest,
        to_vm: link(rng),
        from_vm: link(rng),
        start_ms: rng.u64(0..20),
        abort: one_in(rng, 10).then(|| (rng.bool(), rng.u64(30..400))),
        // With both SYN-ACKs in flight at once smoltcp may reset the connection by itself.
        has_two_listeners: false,
        sender_is_lwip: false,
        other_syn_acks: (0..rate(rng, 2)).map(|_| rng.u64(0..400)).collect(),
    };
    let mut machine = machine(kind);
    if one_in(rng, 6) {
        machine.leg = Some(leg(rng));
    }
    let fortune = &mut machine.fortune;
    fortune.schedule = schedule(rng);
    fortune.vcpus = [Vcpus::Busy, Vcpus::Halted, Vcpus::Unnamed][rng.usize(0..3)];
    fortune.super_packets = !one_in(rng, 4);
    fortune.loss = (rate(rng, 50), rate(rng, 50));
    fortune.races = if one_in(rng, 3) { rng.u32(1..300) } else { 0 };
    fortune.crashes = if one_in(rng, 4) { rng.u32(1..1_000) } else { 0 };
    if one_in(rng, 8) {
        fortune.crash_at = Some(rng.u64(1..400));
    }
    if one_in(rng, 3) {
        let period = rng.u64(20..400);
        fortune.engine = Schedule::Periodic { from: 0, period, stop: rng.u64(1..period) };
    }
    fortune.latency_us = [20, 100, 3_000][rng.usize(0..3)];
    machine.ring_slots = [8, 64, 500][rng.usize(0..3)];
    machine.chunks = [64, 1_024][rng.usize(0..2)];
    // Without a next engine acknowledged bytes can be lost; `cases` covers that.
    machine.absence_ms = Some(rng.u64(1..1_000));
    machine.attached = !one_in(rng, 4);
    machine.acts = acts(rng, machine.attached);
    // Its state can be copied.
    if kind == Kind::Linux && one_in(rng, 10) {
        roll_back(rng, &mut machine.acts);
    }
    // A VM of lwIP fails an assertion of its own if a sender that was shown more than the VM's
    // window sends so much when the hooks are gone, and the VM has lost what came before
    // (docs/reference/limits.md).
    let ahead = [0, 100_000, u32::MAX][rng.usize(0..3)];
    machine.ahead = if kind == Kind::Lwip && !machine.acts.is_empty() { 0 } else { ahead };
    let (mut connections, mut last_hop) = (vec![connection], None);
    if one_in(rng, INCAST) {
        let count = rng.usize(2..4);
        last_hop = Some(incast(&mut machine, &mut connections, count, rng));
        for connection in &mut connections[1..] {
            connection.start_ms = rng.u64(0..20);
            connection.abort = None;
        }
    }
    // Last, so that the other storms stay as they are.
    if one_in(rng, MOVE) {
        machine.acts.push((rng.u64(1..400), Act::Move));
        machine.acts.sort_by_key(|(at, _)| *at);
    }
    if one_in(rng, MISS) && machine.fortune.vcpus != Vcpus::Busy {
        machine.fortune.misses = rng.u32(1..100);
    }
    // A VM that moves while it is split is a known fault (docs/reference/limits.md). One that is
    // rolled back has sent what it does not know, with vsnoop and without.
    let is_unfit = |(_, act): &(u64, Act)| matches!(act, Act::Move | Act::RollBack);
    let is_fit = kind != Kind::Lwip && last_hop.is_none() && !machine.acts.iter().any(is_unfit);
    if is_fit && one_in(rng, SPLIT) {
        split(rng, &mut machine, &mut connections);
    }
    Scenario {
        seed,
        machines: vec![machine],
        connections,
        last_hop,
        hostile_ms: STORM_MS,
        patience_ms: PATIENCE_MS,
        without: false,
    }
}

/// Is the VM rolled back? What it has acknowledged in between is lost, with vsnoop and without, and
/// what that was is a matter of time.
pub fn is_rolled_back(sc: &Scenario, c: usize) -> bool {
    sc.machines[sc.connections[c].vm].acts.iter().any(|(_, act)| *act == Act::RollBack)
}

/// Does an end of connection `c` abort it? A peer that gets nothing at that moment, and sends
/// nothing, never learns of it.
pub fn is_aborted(sc: &Scenario, c: usize) -> bool {
    sc.connections[c].abort.is_some()
}
