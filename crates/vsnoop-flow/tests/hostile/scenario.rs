//! What one simulated connection goes through, drawn by proptest.

use proptest::prelude::*;
use vsnoop_flow::testing::clock::Freezes;
use vsnoop_flow::testing::end::{End, end, rate};
use vsnoop_flow::testing::network::{Link, link};

/// What the operator does in mid-stream.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Observe,
    Activate,
    Pause,
    Detach,
    Attach,
    Buffer(u32),
    Thin(bool),
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub vm_opens: bool,
    pub sender: End,
    pub vm: End,
    pub to_vm: Link,
    pub from_vm: Link,
    /// After this the network and the VM behave.
    pub hostile_ms: u64,
    pub ring_slots: usize,
    /// Of the tap. A flow changes its queue when the guest does, and what is in
    /// two queues at a time comes out in any order.
    pub queues: u8,
    /// When the VM does not run.
    pub freezes: Freezes,
    /// Segments that the guest loses after its ring, per thousand.
    pub guest_loss: u32,
    /// When the VM takes window back.
    pub shrink_ms: Option<u64>,
    /// Who aborts, and when.
    pub abort: Option<(bool, u64)>,
    /// An option that is not understood appears in mid-stream, per 10,000.
    pub foreign: u32,
    /// Blind SYN and RST segments of an attacker, per thousand of the sender's.
    pub attacks: u32,
    /// Hand-overs that cannot be known to be exact, per thousand.
    pub inexact: u32,
    /// Another CPU gets in between decision and hand-over, per thousand.
    pub races: u32,
    pub attached: bool,
    pub buf_size: u32,
    pub thin: bool,
    pub acts: Vec<(u64, Act)>,
    /// Idle records are forgotten after this.
    pub idle_ms: u64,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => Just(Act::Observe),
        3 => Just(Act::Activate),
        1 => Just(Act::Pause),
        1 => Just(Act::Detach),
        2 => Just(Act::Attach),
        1 => (2_000u32..200_000).prop_map(Act::Buffer),
        1 => any::<bool>().prop_map(Act::Thin),
    ]
}

pub fn scenario() -> impl Strategy<Value = Scenario> {
    let network = (link(), link(), 0u64..8_000, prop_oneof![2usize..16, 16usize..256]);
    let vm = (
        prop::collection::vec((0u64..6_000, prop_oneof![5u64..100, 100u64..3_000]), 0..8),
        prop_oneof![6 => Just(0u32), 1 => 1u32..50],
        prop_oneof![8 => Just(None), 1 => (0u64..2_000).prop_map(Some)],
        prop_oneof![8 => Just(None), 1 => (any::<bool>(), 0u64..3_000).prop_map(Some)],
        prop_oneof![9 => Just(0u32), 1 => 1u32..50],
        prop_oneof![3 => Just(1u8), 1 => Just(2)],
        prop_oneof![4 => Just(0u32), 1 => 1u32..100],
    );
    let host = (
        prop_oneof![3 => Just(0u32), 1 => 1u32..300],
        rate(100),
        prop::bool::weighted(0.85),
        prop_oneof![Just(4u32 << 20), Just(0u32), 2_000u32..100_000],
        any::<bool>(),
        prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec((0u64..4_000, act()), 0..6)],
        prop_oneof![3 => Just(60_000u64), 1 => 200u64..5_000],
    );
    (any::<u64>(), any::<bool>(), end(), end(), network, vm, host).prop_map(
        |(seed, vm_opens, mut sender, mut vm, network, guest, host)| {
            let (to_vm, from_vm, hostile_ms, ring_slots) = network;
            let (freezes, guest_loss, shrink_ms, abort, foreign, queues, attacks) = guest;
            let (inexact, races, attached, buf_size, thin, acts, idle_ms) = host;
            // Both waiting for the other to close would wait for ever.
            vm.closes_last &= !sender.closes_last;
            // Scale and timestamps are in use only if both ends offer them.
            if sender.seed_offers(seed) {
                sender.scale = sender.scale.or(Some(2));
                sender.timestamps |= vm.timestamps;
                sender.sack |= vm.sack;
            }
            Scenario {
                seed,
                vm_opens,
                sender,
                vm,
                to_vm,
                from_vm,
                hostile_ms,
                ring_slots,
                queues,
                freezes: Freezes(freezes),
                guest_loss,
                shrink_ms,
                abort,
                foreign,
                attacks,
                inexact,
                races,
                attached,
                buf_size,
                thin,
                acts,
                idle_ms,
            }
        },
    )
}
