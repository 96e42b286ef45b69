//! Results of incast control: barrier-synchronised rounds, and long flows.

use vsnoop_flow::incast;

use crate::sim::*;

const ANSWER: u64 = 64 << 10;
/// Payload rate of the link with full segments, 1,448 of 1,538 bytes.
const MOST_MBPS: f64 = 941.0;
const LIMIT: u64 = 60_000 * MS;

/// Several rounds of the same kind, together.
#[derive(Debug, Default)]
struct Rounds {
    ended: usize,
    mbps: f64,
    late: usize,
    drops: u64,
}

fn rounds(set: Setting, n: usize, bytes: u64, count: usize) -> Rounds {
    rounds_in(&mut Sim::new(set), n, bytes, count)
}

fn rounds_in(sim: &mut Sim, n: usize, bytes: u64, count: usize) -> Rounds {
    let mut all = Rounds::default();
    let mut ms = 0.0;
    for _ in 0..count {
        let Some(round) = sim.round(n, bytes, LIMIT) else { break };
        all.ended += 1;
        all.drops += round.drops;
        all.late += usize::from(round.timeouts + round.probes > 0);
        ms += round.ms;
    }
    all.mbps = (all.ended * n) as f64 * bytes as f64 * 8.0 / ms / 1e3;
    all
}

fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&s| s as f64).sum();
    let squares: f64 = shares.iter().map(|&s| (s as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn nothing_is_lost_with_up_to_64_senders() {
    for early in [true, false] {
        for n in [1, 2, 4, 8, 16, 24, 32, 40, 48, 64] {
            for seed in 1..4 {
                for pause_ns in [200 * US, 50 * MS, 500 * MS] {
                    let set = Setting { senders: n, early, seed, pause_ns, ..Setting::default() };
                    let all = rounds(set, n, ANSWER, 3);
                    let what = format!("{n} senders, early {early}, pause {pause_ns}: {all:?}");
                    assert_eq!((all.ended, all.drops, all.late), (3, 0, 0), "{what}");
                    assert!(n < 4 || all.mbps > 0.9 * MOST_MBPS, "{what}");
                }
            }
        }
    }
}

#[test]
fn less_than_the_whole_queue_can_be_configured() {
    for n in [4, 16, 32, 40] {
        let set = Setting { senders: n, control: Some(64 << 10), ..Setting::default() };
        let all = rounds(set, n, ANSWER, 5);
        assert_eq!((all.ended, all.drops, all.late), (5, 0, 0), "{n} senders: {all:?}");
    }
}

#[test]
fn forty_senders_fill_the_link() {
    for early in [true, false] {
        for queue in [128 << 10, 256 << 10] {
            let set =
                Setting { senders: 40, early, queue, control: Some(queue), ..Setting::default() };
            let all = rounds(set.clone(), 40, ANSWER, 10);
            assert!(all.mbps > 0.9 * MOST_MBPS, "early {early}, {queue} bytes: {all:?}");
            let off = rounds(Setting { control: None, ..set }, 40, ANSWER, 10);
            assert!(off.mbps < 0.5 * MOST_MBPS, "nothing to gain here: {off:?}");
        }
    }
}

/// A last hop with a queue of `queue` bytes, whose length incast control knows.
fn controlled(senders: usize, early: bool, queue: u32) -> Setting {
    Setting { senders, early, queue, control: Some(queue), ..Setting::default() }
}

#[test]
fn where_plain_tcp_loses_nothing_it_is_hardly_faster() {
    let mut compared = 0;
    for n in [1, 2, 3, 4, 6, 8] {
        for bytes in [16 << 10, 64 << 10, 256 << 10, 4 << 20] {
            for early in [true, false] {
                let queue = 256 << 10;
                let set = controlled(n, early, queue);
                let off = rounds(Setting { control: None, ..set.clone() }, n, bytes, 5);
                if off.drops > 0 || off.ended < 5 {
                    continue;
                }
                let on = rounds(set, n, bytes, 5);
                compared += 1;
                println!("{n} x {bytes} early {early}: {:.0} off {:.0}", on.mbps, off.mbps);
                assert!(on.mbps > 0.97 * off.mbps, "{n} x {bytes}, early {early}: {on:?} {off:?}");
            }
        }
    }
    assert!(compared >= 12, "only {compared} cases without loss");
}

/// Prints a table of results with --nocapture.
#[test]
fn every_round_ends() {
    for early in [true, false] {
        println!("early ACKs: {early}\nqueue    N |   Mb/s   lost   late |    off   lost   late");
        for queue in [64u32 << 10, 128 << 10, 256 << 10] {
            for n in [4, 8, 16, 32, 40, 64, 100, 200] {
                let set = controlled(n, early, queue);
                let on = rounds(set.clone(), n, ANSWER, 3);
                let off = rounds(Setting { control: None, ..set }, n, ANSWER, 3);
                println!(
                    "{:5} {n:4} | {:6.0} {:6} {:3}/{:2} | {:6.0} {:6} {:3}/{:2}",
                    queue >> 10,
                    on.mbps,
                    on.drops,
                    on.late,
                    on.ended,
                    off.mbps,
                    off.drops,
                    off.late,
                    off.ended
                );
                assert_eq!(on.ended, 3, "{n} senders, {queue} bytes: {on:?}");
            }
        }
    }
}

#[test]
fn long_flows_share_alike_whatever_they_begin_with() {
    for (n, early, seed) in
        [(2, true, 1), (5, false, 2), (10, true, 3), (20, false, 4), (40, true, 5)]
    {
        let mut sim = Sim::new(Setting { senders: n, early, seed, ..Setting::default() });
        let mut rng = fastrand::Rng::with_seed(seed);
        let credit = incast::credit(sim.host.uplink());
        for id in 0..n {
            let f = sim.host.flow(id).expect("the flow is there");
            f.incast.window = rng.u32(1_460..credit);
        }
        sim.stream(0..n);
        sim.progress(500 * MS);
        let shares = sim.progress(500 * MS);
        let mbps = shares.iter().sum::<u64>() as f64 * 8.0 / 500e3;
        println!("{n} flows, early {early}: Jain {:.3}, {mbps:.0} Mb/s", jain(&shares));
        assert!(jain(&shares) > 0.95, "{n} flows: {shares:?}");
        assert!(mbps > 0.9 * MOST_MBPS, "{n} flows: {mbps} Mb/s");
        assert_eq!(sim.tally.drops, 0, "{n} flows");
    }
}

#[test]
fn idle_connections_take_little_from_those_that_are_not() {
    let after_a_pause = |idle| {
        let mut sim = Sim::new(Setting { senders: 4, idle, ..Setting::default() });
        sim.progress(100 * MS);
        rounds_in(&mut sim, 4, ANSWER, 10)
    };
    let alone = after_a_pause(0);
    for idle in [100, 1_000] {
        let among = after_a_pause(idle);
        assert!(among.mbps > 0.85 * alone.mbps, "{idle} idle: {among:?}, without {alone:?}");
    }
}

#[test]
fn a_sender_that_thinks_is_not_far_away() {
    let set = Setting { senders: 40, think_ns: 20 * MS, ..Setting::default() };
    let mut sim = Sim::new(set);
    for _ in 0..20 {
        sim.round(40, ANSWER, LIMIT).expect("the round ends");
    }
    assert_eq!(sim.host.uplink().all.open, 40, "some are not shaped any more");
    assert_eq!(sim.tally.drops, 0);
}

#[test]
fn a_flow_from_far_away_is_left_alone() {
    let mut sim = Sim::new(Setting { rtt_ns: 20 * MS, ..Setting::default() });
    sim.round(1, 32 << 20, 2 * LIMIT).expect("the round ends");
    assert_eq!(sim.host.uplink().all.open, 0);
    assert_eq!(incast::outstanding(sim.host.uplink()), 0);
}

#[test]
fn the_round_trip_of_a_full_queue_is_not_taken_for_a_long_way() {
    for n in [10, 40] {
        let mut sim = Sim::new(Setting { senders: n, ..Setting::default() });
        sim.stream(0..n);
        sim.progress(2_000 * MS);
        let base = sim.host.uplink().base_rtt_ns;
        assert!(base < 250 * US as u32, "{n} flows: {base} ns, of 100,000");
    }
}

// Several ports.

/// Bytes that each port carries in `ns` while all senders have data without end, and the sum in
/// Mb/s.
fn ports(set: Setting, ns: u64) -> (Sim, Vec<u64>, f64) {
    let counts = set.ports.clone();
    let mut sim = Sim::new(Setting { senders: counts.iter().sum(), ..set });
    sim.stream(0..sim.set.senders);
    sim.progress(250 * MS);
    let flows = sim.progress(ns);
    let mut flows = flows.iter();
    let shares: Vec<u64> = counts.iter().map(|n| flows.by_ref().take(*n).sum()).collect();
    let mbps = shares.iter().sum::<u64>() as f64 * 8_000.0 / ns as f64;
    (sim, shares, mbps)
}

#[test]
fn ports_share_alike_however_many_flows_each_has() {
    for counts in [
        &[200, 1][..],
        &[1, 200],
        &[40, 1],
        &[8, 1],
        &[100, 10, 1],
        &[40, 40],
        &[200, 1, 1, 1],
        &[300, 1, 1, 1, 1, 1, 1, 1],
    ] {
        for early in [true, false] {
            // They begin in turn: the first segments of 300 flows at once would overflow the queue.
            let set =
                Setting { ports: counts.to_vec(), early, think_ns: 100 * MS, ..Setting::default() };
            let (sim, shares, mbps) = ports(set, 250 * MS);
            let what = format!("{counts:?}, early {early}: {shares:?}, {mbps:.0} Mb/s");
            println!("{what}, Jain {:.3}, {} lost", jain(&shares), sim.tally.drops);
            assert!(jain(&shares) > 0.95, "{what}");
            assert!(mbps > 0.85 * MOST_MBPS, "{what}");
        }
    }
}

#[test]
fn what_a_port_does_not_want_others_have() {
    for (heavy, light) in [(40, 1), (200, 1), (1, 40)] {
        let set =
            Setting { senders: heavy + light, ports: vec![heavy, light], ..Setting::default() };
        let mut sim = Sim::new(set);
        // The light flows send a little at first, then nothing.
        for _ in 0..3 {
            sim.round(heavy + light, 16 << 10, LIMIT).expect("the round ends");
        }
        sim.stream(0..heavy);
        sim.progress(200 * MS);
        let bytes: u64 = sim.progress(500 * MS).iter().sum();
        let mbps = bytes as f64 * 8.0 / 500e3;
        assert!(mbps > 0.9 * MOST_MBPS, "{heavy} beside {light} idle: {mbps:.0} Mb/s");
    }
}

#[test]
fn a_request_of_a_quiet_port_is_answered_in_time_beside_a_port_with_200_flows() {
    let set = Setting { senders: 201, ports: vec![1, 200], ..Setting::default() };
    let mut sim = Sim::new(set.clone());
    sim.stream(1..201);
    sim.progress(500 * MS);
    let mut worst = 0.0f64;
    for _ in 0..50 {
        let round = sim.round(1, 16 << 10, LIMIT).expect("the round ends");
        assert_eq!((round.timeouts, round.probes), (0, 0), "it waited for a timeout");
        worst = worst.max(round.ms);
    }
    println!("16 KB beside 200 streams: {worst:.2} ms at most");
    assert!(worst < 15.0, "{worst} ms");
}

/// The queue of a slow last hop holds data for longer than an epoch and a census take at 1 Gb/s.
#[test]
fn a_slow_last_hop_loses_nothing_either() {
    for mbps in [600, 200, 50] {
        for (n, scale) in [(4, 7), (4, 10), (40, 7), (40, 10), (64, 7)] {
            for early in [false, true] {
                // Opened at once, and one by one.
                for connect_gap_ns in [0, 300 * US] {
                    let set = controlled(n, early, 128_000);
                    let set = Setting { mbps, scale, connect_gap_ns, ..set };
                    let all = rounds(set, n, 64_000, 3);
                    let what = format!(
                        "{mbps} Mb/s, {n} senders, scale {scale}, early {early}, gap \
                         {connect_gap_ns}: {all:?}"
                    );
                    assert_eq!((all.ended, all.drops, all.late), (3, 0, 0), "{what}");
                    let part = all.mbps / (MOST_MBPS * mbps as f64 / 1e3);
                    assert!(part > 0.9, "{part}: {what}");
                }
            }
        }
    }
}

/// The other end of a new connection may be far away: with less it would need a round trip more.
#[test]
fn a_new_connection_beside_idle_ones_begins_with_two_segments() {
    for queue in [64 << 10, 128 << 10] {
        let set = Setting { idle: 200, connect_gap_ns: 20 * MS, ..controlled(1, false, queue) };
        let mut sim = Sim::new(set);
        assert!(sim.host.silent() > 0, "idle connections have no windows");
        let window = sim.first_window();
        assert!(window >= 2 * 1_448, "{window} bytes with a queue of {queue}");
    }
}

#[test]
fn a_late_vm_delays_no_grant() {
    for senders in [40, 64] {
        let vm_schedule = Some((30 * MS, 30 * MS));
        let set = Setting { senders, mbps: 200, vm_schedule, ..Setting::default() };
        let mut sim = Sim::new(set);
        let all = rounds_in(&mut sim, senders, ANSWER, 5);
        assert_eq!((all.ended, all.late), (5, 0), "{all:?}");
        assert!(
            all.mbps > 0.95 * MOST_MBPS / 5.0,
            "{all:?}, {} of the helper",
            sim.tally.helper_grants
        );
    }
}

/// Connections whose senders have only ever answered so far.
#[test]
fn a_sender_that_pauses_within_an_answer_has_not_finished() {
    for early in [true, false] {
        for n in [32, 40, 64] {
            for seed in 1..4 {
                let mut sim = Sim::new(Setting { senders: n, early, seed, ..Setting::default() });
                let before = rounds_in(&mut sim, n, ANSWER, 3);
                sim.write_in(4, MS);
                let all = rounds_in(&mut sim, n, ANSWER, 3);
                let what = format!("{n} senders, early {early}: {before:?} {all:?}");
                assert_eq!((all.ended, all.drops, all.late), (3, 0, 0), "{what}");
            }
        }
    }
}

/// A volley of answers that are shorter than the ones before leaves windows open that the next
/// volley may use.
#[test]
fn answers_of_changing_length_lose_little() {
    let lengths =
        [ANSWER, 3_000, ANSWER, 20_000, 700, ANSWER, ANSWER, 40_000, ANSWER, ANSWER, 5_000, ANSWER];
    let drops = |set: &Setting| {
        let rounds = (1..9).flat_map(|seed| {
            let mut sim = Sim::new(Setting { seed, ..set.clone() });
            lengths.map(|bytes| rounds_in(&mut sim, set.senders, bytes, 1))
        });
        rounds.fold(0, |sum, round| {
            assert_eq!(round.ended, 1, "{set:?}");
            sum + round.drops
        })
    };
    for early in [true, false] {
        for senders in [8, 32, 40, 64] {
            let set = controlled(senders, early, 128 << 10);
            let (on, off) = (drops(&set), drops(&Setting { control: None, ..set }));
            println!("{senders} senders, early {early}: {on} lost, off {off}");
            assert!(on < off / 50, "{senders} senders, early {early}: {on} lost, off {off}");
        }
    }
}
