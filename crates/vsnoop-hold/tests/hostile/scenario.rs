//! What the connections of one simulated VM go through, drawn by proptest.

use proptest::prelude::*;
use vsnoop_flow::testing::clock::Freezes;
use vsnoop_flow::testing::end::{End, end, rate};
use vsnoop_flow::testing::network::{Link, link};

#[derive(Clone, Debug)]
pub struct Connection {
    pub vm_opens: bool,
    pub sender: End,
    pub vm: End,
    pub to_vm: Link,
    pub from_vm: Link,
    pub start_ms: u64,
    /// When the VM takes window back.
    pub shrink_ms: Option<u64>,
    /// Who aborts, and when.
    pub abort: Option<(bool, u64)>,
}

/// What the operator does in mid-stream.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Activate,
    Pause,
    Detach,
    Buffer(u32),
    Thin(bool),
}

/// The engine's process.
#[derive(Clone, Debug)]
pub struct Fate {
    /// It is killed at so many of its steps, per 10,000.
    pub crashes: u32,
    /// At this step, counted over all engines, in any case.
    pub crash_at: Option<u64>,
    /// How long until there is another one, at most.
    pub absence_ms: u64,
    /// There is another one.
    pub returns: bool,
    /// When it is stopped, and goes on as if nothing had been.
    pub stops: Freezes,
    /// How long it takes to hear its doorbell, at most.
    pub latency_us: u64,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub connections: Vec<Connection>,
    /// After this the network, the VM and the engine behave.
    pub hostile_ms: u64,
    pub ring_slots: usize,
    /// When the VM does not run.
    pub freezes: Freezes,
    /// Frames that the guest loses after its ring, per thousand.
    pub guest_loss: u32,
    /// Blind SYN and RST segments of an attacker, per thousand of the senders'.
    pub attacks: u32,
    /// Hand-overs that cannot be known to be exact, per thousand.
    pub inexact: u32,
    /// Another CPU gets in between two steps, per thousand.
    pub races: u32,
    /// An option that is not understood appears in mid-stream, per 10,000.
    pub foreign: u32,
    pub chunks: u32,
    pub per_flow: u32,
    pub holds: usize,
    pub buf_size: u32,
    pub thin: bool,
    pub engine: Fate,
    pub acts: Vec<(u64, Act)>,
    /// Idle records are forgotten after this.
    pub idle_ms: u64,
    /// The helper works; without it the hooks are all there is.
    pub helper: bool,
    /// The VM must have acknowledged everything by then, and nothing be held.
    pub drained_by_ms: Option<u64>,
}

fn connection() -> impl Strategy<Value = Connection> {
    let sent = prop_oneof![
        1 => Just(0u64),
        2 => 1u64..5_000,
        4 => 5_000u64..150_000,
        3 => 150_000u64..1_000_000
    ];
    let receives =
        prop_oneof![3 => Just(65_535u64), 1 => 1_500u64..8_000, 1 => 500_000u64..6_000_000];
    let vm = (
        prop_oneof![2 => Just(0u64), 1 => 0u64..2_000],
        prop_oneof![8 => Just(None), 1 => (0u64..2_000).prop_map(Some)],
        prop_oneof![8 => Just(None), 1 => (any::<bool>(), 0u64..3_000).prop_map(Some)],
    );
    (any::<bool>(), any::<u64>(), end(), end(), (sent, receives), link(), link(), vm).prop_map(
        |(vm_opens, seed, mut sender, mut vm, (sent, receives), to_vm, from_vm, guest)| {
            let (start_ms, shrink_ms, abort) = guest;
            if seed % 8 != 1 {
                vm.bytes = vm.bytes.min(3_000);
            }
            // No segment is larger than what the receiver asked for.
            sender.mss = sender.mss.min(vm.mss);
            sender.bytes = sent.min(1_500 * u64::from(sender.mss));
            vm.rcvbuf = receives.max(u64::from(vm.mss) + 200);
            if seed % 16 == 5 {
                // Less than a segment fits. Guests take what does of one that does not, at least when
                // they have nothing else.
                vm.rcvbuf = u64::from(sender.mss) * 3 / 4;
                vm.trims = true;
                // It takes long.
                sender.bytes = sender.bytes.min(15_000);
            }
            // The hold needs to know the scale, and most have one; its unit is no small part of the
            // buffer.
            if seed % 8 != 2 {
                vm.scale = Some(vm.scale.unwrap_or(7));
                sender.scale = sender.scale.or(Some(2));
            }
            vm.scale = vm.scale.map(|s| s.min(vm.rcvbuf.ilog2() as u8 - 2));
            // Both waiting for the other to close would wait for ever.
            vm.closes_last &= !sender.closes_last;
            if seed % 4 != 0 {
                sender.timestamps |= vm.timestamps;
                sender.sack |= vm.sack;
            }
            Connection { vm_opens, sender, vm, to_vm, from_vm, start_ms, shrink_ms, abort }
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Activate),
        2 => Just(Act::Pause),
        1 => Just(Act::Detach),
        1 => (2_000u32..200_000).prop_map(Act::Buffer),
        1 => any::<bool>().prop_map(Act::Thin),
    ]
}

/// When something stands still: start and length, ms.
fn standstills(longest: u64) -> impl Strategy<Value = Freezes> {
    let long = prop_oneof![6 => 5u64..100, 3 => 100u64..3_000, 1 => 3_000u64..longest];
    prop::collection::vec((0u64..6_000, long), 0..8).prop_map(Freezes)
}

fn fate() -> impl Strategy<Value = Fate> {
    let absence = prop_oneof![
        3 => 0u64..100,
        2 => 100u64..900,
        2 => 900u64..4_500,
        1 => 4_500u64..20_000
    ];
    let stops = prop_oneof![3 => Just(Freezes::default()), 1 => standstills(8_000)];
    let latency = prop_oneof![3 => 1u64..100, 1 => 100u64..30_000];
    (rate(300), absence, prop::bool::weighted(0.9), stops, latency).prop_map(
        |(crashes, absence_ms, returns, stops, latency_us)| Fate {
            crashes,
            crash_at: None,
            absence_ms,
            returns,
            stops,
            latency_us,
        },
    )
}

pub fn scenario() -> impl Strategy<Value = Scenario> {
    let network = (0u64..8_000, prop_oneof![2usize..16, 16usize..256]);
    let vm = (
        prop_oneof![2 => Just(Freezes::default()), 3 => standstills(20_000)],
        prop_oneof![4 => Just(0u32), 1 => Just(10), 1 => Just(200), 1 => 1u32..100],
        prop_oneof![6 => Just(0u32), 1 => 1u32..100],
        prop_oneof![15 => Just(0u32), 1 => 1u32..50],
    );
    let host = (
        prop_oneof![3 => Just(0u32), 1 => 1u32..300],
        rate(100),
        prop_oneof![1 => 8u32..64, 3 => 64u32..300],
        prop_oneof![1 => 4_000u32..64_000, 3 => 64_000u32..1_500_000],
        prop_oneof![1 => 1usize..3, 3 => Just(8)],
        prop_oneof![Just(4u32 << 20), Just(0u32), 2_000u32..100_000],
        any::<bool>(),
        prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec((0u64..4_000, act()), 0..6)],
        prop_oneof![6 => Just(60_000u64), 1 => 200u64..5_000],
    );
    let connections = prop_oneof![
        3 => prop::collection::vec(connection(), 1),
        2 => prop::collection::vec(connection(), 2..5)
    ];
    (any::<u64>(), connections, network, vm, host, fate()).prop_map(
        |(seed, connections, network, vm, host, engine)| {
            let (hostile_ms, ring_slots) = network;
            let (freezes, guest_loss, attacks, foreign) = vm;
            let shrinks = connections.iter().any(|c: &Connection| c.shrink_ms.is_some());
            let (inexact, races, chunks, per_flow, holds, buf_size, thin, acts, idle_ms) = host;
            Scenario {
                seed,
                connections,
                hostile_ms,
                ring_slots,
                freezes,
                guest_loss,
                attacks,
                inexact,
                races,
                foreign,
                chunks,
                per_flow,
                holds,
                buf_size,
                thin,
                engine,
                acts,
                idle_ms,
                // A loss that nobody has a copy of, and no packet reveals, is the helper's.
                helper: guest_loss > 0 || shrinks || seed % 16 != 0,
                drained_by_ms: None,
            }
        },
    )
}

/// The network and the VM behave from the moment that the operator pauses the port; later it is resumed.
pub fn paused() -> impl Strategy<Value = Scenario> {
    (scenario(), 10u64..1_500).prop_map(|(mut scenario, at_ms)| {
        scenario.hostile_ms = at_ms;
        scenario.freezes.0.retain(|&(start, len)| start + len < at_ms);
        scenario.engine.stops = Freezes::default();
        scenario.engine.absence_ms = scenario.engine.absence_ms.min(900);
        scenario.engine.returns = true;
        scenario.drained_by_ms = Some(at_ms + 15_000);
        scenario.acts = vec![(at_ms, Act::Pause), (at_ms + 16_000, Act::Activate)];
        for connection in &mut scenario.connections {
            connection.vm.read = 1_000_000;
        }
        scenario
    })
}
