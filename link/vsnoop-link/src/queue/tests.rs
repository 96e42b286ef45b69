//! The fair queue with senders as guests have them, and with anything at all.

use std::rc::Rc;

use proptest::prelude::*;
use vsnoop_packet::headers::FlowHash;

use super::simulation::*;
use super::*;

fn bulk(control: CongestionControl, flows: usize) -> Vec<Sender> {
    (0..flows).map(|_| Sender::new(control)).collect()
}

#[test]
fn one_cubic_or_reno_flow_fills_the_connection_and_its_queue_is_short() {
    for (control, mbps, round_trip_ms, least) in [
        (CongestionControl::Cubic, 100, 20, 0.90),
        (CongestionControl::Reno, 100, 20, 0.85),
        (CongestionControl::Cubic, 10, 20, 0.90),
        (CongestionControl::Cubic, 1000, 10, 0.85),
        (CongestionControl::Cubic, 100, 2, 0.90),
    ] {
        for cut in [true, false] {
            let mut world = World::new(mbps, round_trip_ms, bulk(control, 1));
            world.cut = cut;
            world.run(5 * S);
            world.measure();
            world.run(30 * S);
            let share = world.share(30 * S);
            let (p50, p99) = (percentile(&world.waits_ns, 50), percentile(&world.waits_ns, 99));
            let name = format!("{control:?} {mbps} Mb/s {round_trip_ms} ms cut {cut}");
            println!("{name}: {share:.3}, waits {} {} us", p50 / 1000, p99 / 1000);
            assert!(share > least, "{name}: {share:.3} of the rate");
            // A super-packet that is not cut takes 52 ms at 10 Mb/s.
            if cut || mbps >= 100 {
                // On a slow connection one overshoot takes as long as may wait at all.
                let longest = if mbps >= 100 { 50 * MS } else { super::fair::BOUND_NS };
                assert!(p50 < 15 * MS && p99 < longest, "{name}: {p50} {p99} ns");
            }
            assert_eq!(world.senders[0].timeouts, 0, "{name}");
        }
    }
}

#[test]
fn a_ping_does_not_wait_behind_sixteen_bulk_flows() {
    for control in [CongestionControl::Cubic, CongestionControl::Reno] {
        let mut world = World::new(100, 20, bulk(control, 16));
        world.ping_every_ns = Some(10 * MS);
        world.run(5 * S);
        world.measure();
        world.run(30 * S);
        let (p50, max) = (percentile(&world.pings_ns, 50), percentile(&world.pings_ns, 100));
        println!(
            "{control:?}: pings {} {} us, share {}",
            p50 / 1000,
            max / 1000,
            world.share(30 * S)
        );
        assert!(world.pings_ns.len() > 2990, "none is lost: {}", world.pings_ns.len());
        // The send buffer with one item beyond its size, and a few items in the queue: 80 ns a
        // byte.
        let buffer_ns = (world.buffer_bytes + world.queue.unit_bytes()) as u64 * 80;
        let queue_ns = max.saturating_sub(buffer_ns);
        assert!(queue_ns <= 2 * MS, "{queue_ns} ns in the queue");
        assert!(world.share(30 * S) > 0.95);
    }
}

#[test]
fn bulk_flows_get_equal_shares_also_beside_one_that_never_gives_way() {
    let mut world = World::new(100, 20, bulk(CongestionControl::Cubic, 8));
    world.run(5 * S);
    world.measure();
    world.run(30 * S);
    let shares: Vec<f64> = world.senders.iter().map(|s| s.delivered as f64).collect();
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    let jain = sum * sum / (shares.len() as f64 * squares);
    println!("Jain {jain}");
    assert!(jain > 0.98, "{jain} {shares:?}");

    // Two flows; one pushes ten times as much as the connection takes.
    let mut queue = FairQueue::new(QueueLimits::default());
    let mut popped = [0, 0];
    for now_ms in 0..10_000_u64 {
        for _ in 0..10 {
            queue.push(FlowHash(1), 12_500, 0, now_ms * MS);
        }
        queue.push(FlowHash(2), 6_000, 1, now_ms * MS);
        // 12,500 bytes a millisecond.
        let sent = popped[0] + popped[1];
        while popped[0] + popped[1] < sent.max(now_ms as usize * 12_500) {
            let Some(flow) = queue.pop(now_ms * MS) else { break };
            popped[flow] += [12_500, 6_000][flow];
        }
    }
    assert!(popped[1] > 59_000_000, "the small one gets all it asks for: {popped:?}");
}

#[test]
fn a_connection_that_becomes_slow_has_a_short_queue_again_soon() {
    let mut world = World::new(100, 20, bulk(CongestionControl::Cubic, 4));
    world.run(10 * S);
    world.rate_bytes_per_s /= 10;
    world.run(3 * S);
    world.measure();
    world.run(20 * S);
    let p99 = percentile(&world.waits_ns, 99);
    println!("p99 {} us, unit {}", p99 / 1000, world.queue.unit_bytes());
    assert!(p99 < 150 * MS, "{p99}");
    assert!(world.share(20 * S) > 0.9);
    let slow = world.queue.unit_bytes();
    world.rate_bytes_per_s *= 10;
    world.run(20 * S);
    assert!(slow < 4000 && world.queue.unit_bytes() > 15_000);
}

#[test]
fn a_connection_that_halts_for_its_own_retransmissions_is_used_all_the_same() {
    let mut world = World::new(100, 20, bulk(CongestionControl::Cubic, 1));
    let mut delivered = 0;
    for _ in 0..100 {
        world.run(270 * MS);
        let rate = std::mem::take(&mut world.rate_bytes_per_s);
        world.run(30 * MS);
        world.rate_bytes_per_s = rate;
        delivered = world.senders[0].delivered;
    }
    let share = delivered as f64 / (0.27 * 100.0 * 12_500_000.0);
    println!("{share} of what is left, timeouts {}", world.senders[0].timeouts);
    assert!(share > 0.9, "{share}");
}

#[test]
fn what_waited_through_a_stall_is_not_sent_when_it_is_stale() {
    let mut queue = FairQueue::new(QueueLimits::default());
    for i in 0..100 {
        queue.push(FlowHash(i), 1000, i, 0);
    }
    queue.push(FlowHash(1000), 1000, 1000, 3 * S);
    assert_eq!(queue.pop(3 * S), Some(1000));
    assert!(queue.pop(3 * S).is_none() && queue.is_empty());
    assert_eq!(queue.stats().dropped_late_packets, 100);
}

#[test]
fn room_is_made_in_the_longest_line() {
    let mut queue = FairQueue::new(QueueLimits { bytes: 10_000, ..QueueLimits::default() });
    queue.push(FlowHash(1), 2_000, "small", 0);
    for _ in 0..4 {
        queue.push(FlowHash(2), 2_000, "fat", 0);
        assert_eq!(queue.stats().dropped_full_bytes, 0);
    }
    queue.push(FlowHash(3), 1_000, "new", 0);
    assert_eq!(queue.stats().dropped_full_bytes, 2_000);
    let mut left: Vec<_> = std::iter::from_fn(|| queue.pop(0)).collect();
    left.sort_unstable();
    assert_eq!(left, ["fat", "fat", "fat", "new", "small"]);
}

#[test]
fn an_item_that_never_fits_is_dropped_itself() {
    let mut queue = FairQueue::new(QueueLimits { bytes: 1000, ..QueueLimits::default() });
    queue.push(FlowHash(1), 900, 1, 0);
    queue.push(FlowHash(2), 1001, 2, 0);
    assert_eq!(queue.stats().dropped_full_bytes, 1001);
    assert_eq!((queue.pop(0), queue.pop(0)), (Some(1), None));
}

proptest! {
    #[test]
    fn bounds_hold_and_each_item_leaves_once(
        bytes in 1_000..200_000_usize,
        packets in 0..100_usize,
        program in proptest::collection::vec(
            (0..20_u64, 0..66_000_usize, 0..4_u8, 0..50_u64),
            1..400,
        ),
    ) {
        let limits = QueueLimits { bytes, packets, ..QueueLimits::default() };
        let mut queue = FairQueue::new(limits);
        let alive = Rc::new(());
        let (mut now_ns, mut popped, mut dropped) = (0, 0_u64, 0);
        let mut order = std::collections::BTreeMap::new();
        for (number, (flow, bytes, pops, ms)) in program.iter().copied().enumerate() {
            now_ns += ms * MS;
            let before = queue.bytes();
            queue.push(FlowHash(flow), bytes, (flow, number, alive.clone()), now_ns);
            dropped += (before + bytes - queue.bytes()) as u64;
            prop_assert!(queue.bytes() <= limits.bytes && queue.len() <= limits.packets);
            prop_assert!(queue.bytes() <= queue.bound_bytes());
            for _ in 0..pops {
                if let Some((flow, number, _)) = queue.pop(now_ns) {
                    popped += 1;
                    let last = order.insert(flow, number);
                    prop_assert!(last.is_none_or(|last| last < number), "in order");
                }
            }
            prop_assert_eq!(Rc::strong_count(&alive), 1 + queue.len());
        }
        while queue.pop(now_ns).is_some() {
            popped += 1;
        }
        let stats = queue.stats();
        prop_assert!(queue.is_empty() && queue.bytes() == 0);
        prop_assert_eq!(stats.popped_packets, popped);
        prop_assert_eq!(stats.dropped_full_bytes, dropped, "to make room");
        let dropped = stats.dropped_full_packets + stats.dropped_late_packets;
        prop_assert_eq!(stats.pushed_packets, popped + dropped);
        let dropped = stats.dropped_full_bytes + stats.dropped_late_bytes;
        prop_assert_eq!(stats.pushed_bytes, stats.popped_bytes + dropped);
        prop_assert_eq!(Rc::strong_count(&alive), 1);
    }
}
