//! What one simulated connection goes through, drawn by proptest.

use proptest::prelude::*;

/// One end of the connection.
#[derive(Clone, Debug)]
pub struct End {
    pub iss: u32,
    pub mss: u16,
    /// Most segments in a super-packet.
    pub units: u16,
    /// Bytes that this end sends.
    pub bytes: u64,
    /// Writes come in this many portions, `write_gap_ms` apart.
    pub writes: u64,
    pub write_gap_ms: u64,
    pub rcvbuf: u64,
    pub scale: Option<u8>,
    pub timestamps: bool,
    pub ts_offset: u32,
    pub sack: bool,
    pub ecn: bool,
    /// Bytes that the application reads at a time, and how often.
    pub read: u64,
    pub read_gap_ms: u64,
    pub rto_ms: u64,
    /// Probes a closed window with a byte of data, not with an old empty segment.
    pub data_probes: bool,
    /// Takes the part of a segment that lies within the window.
    pub trims: bool,
    /// Reports duplicates (RFC 2883).
    pub dsack: bool,
    /// Closes only when the peer has.
    pub closes_last: bool,
    pub delayed_ack: bool,
    /// Odd segments, per thousand: tiny, urgent.
    pub tiny: u32,
    pub urgent: u32,
}

/// One direction of the network; probabilities per thousand.
#[derive(Clone, Debug)]
pub struct Link {
    pub delay_us: u64,
    pub jitter_us: u64,
    pub loss: u32,
    pub duplicate: u32,
    pub corrupt: u32,
    pub reorder: u32,
    pub congestion: u32,
}

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
    /// When the VM does not run: start and length, ms.
    pub freezes: Vec<(u64, u64)>,
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

/// Zero half of the time, so that calm and storm both occur.
fn rate(most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1..=most]
}

fn near_wrap() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0u32..100_000).prop_map(|n| 0u32.wrapping_sub(n)), Just(0x7fff_f000)]
}

fn link() -> impl Strategy<Value = Link> {
    (10u64..5_000, prop_oneof![Just(0u64), 1u64..2_000])
        .prop_flat_map(|(delay_us, jitter_us)| {
            (Just((delay_us, jitter_us)), rate(80), rate(50), rate(30), rate(60), rate(30))
        })
        .prop_map(|((delay_us, jitter_us), loss, duplicate, corrupt, reorder, congestion)| Link {
            delay_us,
            jitter_us,
            loss,
            duplicate,
            corrupt,
            reorder,
            congestion,
        })
}

fn end() -> impl Strategy<Value = End> {
    let shape = (
        near_wrap(),
        prop_oneof![Just(1448u16), Just(536), Just(8948), 100u16..1460],
        prop_oneof![Just(1u16), 2u16..44],
        prop_oneof![Just(0u64), 1u64..3_000, 3_000u64..60_000, 60_000u64..200_000],
        prop_oneof![Just(1u64), 2u64..12],
        prop_oneof![0u64..20, 20u64..400, Just(1_500)],
    );
    let receiver = (
        prop_oneof![Just(65_535u64), 3_000u64..20_000, 20_000u64..300_000],
        proptest::option::of(0u8..15),
        prop_oneof![4 => Just(1_000_000u64), 1 => 200u64..20_000],
        prop_oneof![3 => Just(1u64), 1 => 1u64..40],
        any::<bool>(),
        prop::bool::weighted(0.8),
        any::<bool>(),
    );
    let options = (
        prop::bool::weighted(0.7),
        near_wrap(),
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.4),
        200u64..1_000,
        any::<bool>(),
        prop::bool::weighted(0.2),
        rate(100),
        prop_oneof![9 => Just(0u32), 1 => 1u32..20],
    );
    (shape, receiver, options).prop_map(|(shape, receiver, options)| {
        let (iss, mss, units, bytes, writes, write_gap_ms) = shape;
        let (rcvbuf, scale, read, read_gap_ms, trims, delayed_ack, dsack) = receiver;
        let (timestamps, ts_offset, sack, ecn, rto_ms, data_probes, closes_last, tiny, urgent) =
            options;
        let rcvbuf = rcvbuf.max(u64::from(mss) + 200);
        End {
            iss,
            mss,
            units: units.min(65_000 / mss),
            bytes,
            writes,
            write_gap_ms,
            rcvbuf,
            // A scale whose unit is no small part of the buffer: nobody's choice.
            scale: scale.map(|s| s.min(rcvbuf.ilog2() as u8 - 2)),
            timestamps,
            ts_offset,
            sack,
            ecn,
            read,
            read_gap_ms,
            rto_ms,
            data_probes,
            trims,
            dsack,
            closes_last,
            delayed_ack,
            tiny,
            urgent,
        }
    })
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
                freezes,
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

impl End {
    /// Most senders offer whatever the VM does.
    fn seed_offers(&self, seed: u64) -> bool {
        seed % 4 != 0
    }
}
