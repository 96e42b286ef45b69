//! Method `auto`: when data are compressed and at which level, on a simulated clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::compress::auto::{Judge, Measured};

const MEGABIT: u64 = 125_000;

/// An encoder whose codecs take `cost_ns` a call, whatever the message.
fn costing(cost_ns: &Arc<AtomicU64>, link_rate: Option<u64>) -> Encoder {
    let (cost_ns, mut now_ns) = (cost_ns.clone(), 0);
    let clock = move || {
        // Read before and after each call.
        now_ns += cost_ns.load(Relaxed);
        now_ns
    };
    let mut encoder = Encoder::new(CompressionLimits::MOST, Box::new(clock));
    encoder.set_link_rate(link_rate);
    encoder
}

fn encode(encoder: &mut Encoder, policy: &Policy, message: &[u8], now_ns: u64) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    let encoded = encoder.encode(FlowHash(1), policy, &[message], now_ns, &mut body);
    (encoded == Encoded::Compressed).then_some(body)
}

/// Which messages of `count`, 5 ms apart, are compressed.
fn compressed(encoder: &mut Encoder, policy: &Policy, message: &[u8], count: u64) -> Vec<bool> {
    (0..count).map(|n| encode(encoder, policy, message, n * 5_000_000).is_some()).collect()
}

#[test]
fn what_is_random_stays_raw_and_is_looked_at_ever_more_rarely() {
    // What compression has been at already looks the same.
    let text = payload(Kind::Text, 1, 400_000);
    let packed = zstd_safe::compress_bound(text.len());
    let mut frame = Vec::with_capacity(packed);
    zstd_safe::compress(&mut frame, &text, 19).unwrap();
    for message in [payload(Kind::Random, 1, 64_000), frame[1000..60_000].to_vec()] {
        for method in ["auto", "zstd", "lz4"] {
            let mut encoder = costing(&Arc::default(), Some(100 * MEGABIT));
            let count = 10_000;
            let compressed = compressed(&mut encoder, &policy(method, 1), &message, count);
            assert!(compressed.iter().all(|&compressed| !compressed), "{method}");
            // 50 s: once a second, and a few to begin with.
            assert!(encoder.stats().probes < count / 100, "{}", encoder.stats().probes);
            assert!(encoder.stats().probes > 10);
            assert_eq!(encoder.stats().raw_messages, count);
        }
    }
}

#[test]
fn text_is_compressed_from_its_first_message_and_not_looked_at_again() {
    let mut encoder = costing(&Arc::default(), Some(100 * MEGABIT));
    let message = payload(Kind::Text, 1, 64_000);
    let compressed = compressed(&mut encoder, &policy("auto", 1), &message, 1000);
    assert!(compressed.iter().all(|&compressed| compressed));
    assert_eq!(encoder.stats().probes, 1);
}

#[test]
fn without_a_rate_auto_sends_everything_as_it_is() {
    let mut encoder = costing(&Arc::default(), None);
    let message = payload(Kind::Text, 1, 64_000);
    assert_eq!(encode(&mut encoder, &policy("auto", 1), &message, 0), None);
    assert_eq!(encoder.stats().probes, 0);
    encoder.set_link_rate(Some(MEGABIT));
    assert!(encode(&mut encoder, &policy("auto", 1), &message, 0).is_some());
}

#[test]
fn a_flow_that_turns_into_text_is_compressed_within_a_second() {
    let mut encoder = costing(&Arc::default(), Some(100 * MEGABIT));
    let auto = policy("auto", 1);
    compressed(&mut encoder, &auto, &payload(Kind::Random, 1, 64_000), 5000);
    let text = payload(Kind::Text, 1, 64_000);
    let from_ns = 5000 * 5_000_000;
    let first =
        (0..2000).find(|n| encode(&mut encoder, &auto, &text, from_ns + n * 5_000_000).is_some());
    assert!(first.unwrap() * 5_000_000 <= 1_000_000_000, "{first:?}");
    assert!(encode(&mut encoder, &auto, &text, from_ns + 20_000_000_000).is_some());
}

#[test]
fn a_cpu_that_has_better_things_to_do_turns_it_off_and_on_again() {
    let cost_ns = Arc::new(AtomicU64::new(100_000));
    let mut encoder = costing(&cost_ns, Some(100 * MEGABIT));
    let (auto, text) = (policy("auto", 1), payload(Kind::Text, 1, 64_000));
    assert!(compressed(&mut encoder, &auto, &text, 100).iter().all(|&compressed| compressed));
    // 64 KB take 5.1 ms on the link: 20 ms for less of them is no gain.
    cost_ns.store(20_000_000, Relaxed);
    let during = compressed(&mut encoder, &auto, &text, 2000);
    assert!(during[200..].iter().filter(|&&compressed| compressed).count() < 20);
    // And a second is enough to see that it is over.
    cost_ns.store(100_000, Relaxed);
    let after: Vec<_> = (0..1000)
        .map(|n| encode(&mut encoder, &auto, &text, 60_000_000_000 + n * 5_000_000).is_some())
        .collect();
    assert!(after[400..].iter().all(|&compressed| compressed));
}

#[test]
fn the_faster_the_link_the_less_is_done_for_it() {
    // What the codecs take of an honest CPU, by the codec that the last body names.
    let done = |kind: Kind, rate: u64| {
        let mut encoder = costing(&Arc::new(AtomicU64::new(150_000)), Some(rate));
        let body = encode(&mut encoder, &policy("auto", 1), &payload(kind, 1, 64_000), 0);
        body.map(|body| body[0] & 0b11)
    };
    let (lz4, zstd) = (Some(0), Some(1));
    assert_eq!(done(Kind::Text, 10 * MEGABIT), zstd);
    assert_eq!(done(Kind::Text, 100 * MEGABIT), zstd);
    assert_eq!(done(Kind::Zeros, 2000 * MEGABIT), lz4);
    assert_eq!(done(Kind::Zeros, 40_000 * MEGABIT), None, "no codec is as fast as that");
}

#[test]
fn it_is_said_what_is_done_with_a_flow_and_why_nothing_is() {
    let (text, random) = (payload(Kind::Text, 1, 64_000), payload(Kind::Random, 1, 64_000));
    for (method, message, rate, expected) in [
        ("auto", &text, Some(MEGABIT), "zstd:6"),
        ("auto", &text, Some(1_000_000 * MEGABIT), "raw_does_not_pay"),
        ("auto", &text, None, "raw_rate_unknown"),
        ("auto", &random, Some(MEGABIT), "raw_incompressible"),
        ("lz4", &text, None, "lz4"),
        ("zstd:3", &text, None, "zstd:3"),
        ("zstd", &random, None, "raw_incompressible"),
    ] {
        let mut encoder = costing(&Arc::new(AtomicU64::new(100_000)), rate);
        let policy = policy(method, 1);
        assert_eq!(encoder.find_decision(FlowHash(1), &policy), None, "before there was any");
        compressed(&mut encoder, &policy, message, 40);
        let (seen_ns, decision) = encoder.find_decision(FlowHash(1), &policy).expect("it was seen");
        assert_eq!((seen_ns, &*decision.to_string()), (39 * 5_000_000, expected), "{method}");
    }
}

#[test]
fn a_flow_of_an_unknown_rate_is_judged_as_soon_as_there_is_one() {
    let mut encoder = costing(&Arc::default(), None);
    let policy = policy("auto", 1);
    let message = payload(Kind::Random, 1, 64_000);
    compressed(&mut encoder, &policy, &message, 1);
    encoder.set_link_rate(Some(MEGABIT));
    compressed(&mut encoder, &policy, &message, 1);
    assert_eq!(encoder.find_decision(FlowHash(1), &policy), Some((0, Decision::Incompressible)));
    // It is not known any more.
    encoder.set_link_rate(None);
    assert_eq!(encoder.find_decision(FlowHash(1), &policy), Some((0, Decision::RateUnknown)));
}

/// The way that most of the last messages of many took, when each way leaves so much of a byte
/// (parts of a thousand), and its duration: lz4, zstd at levels 1, 3 and 6.
fn settles_on(effects: [(usize, u64); 4]) -> Method {
    let key = (Owner::Named(1), FlowHash(1));
    let (message, mut stats) = (payload(Kind::Text, 1, 64_000), CompressionStats::default());
    let mut judge = Judge::new(Codecs::ALL);
    judge.set_link_rate(Some(100 * MEGABIT));
    let mut taken = Vec::new();
    for n in 0..4000 {
        let now_ns = n * 5_000_000;
        let method = judge.choose_method(key, Method::Auto, &[&message], now_ns, &mut stats);
        let levels = ["lz4", "zstd:1", "zstd:3", "zstd:6"].map(|word| word.parse().ok());
        let way = levels.iter().position(|level| *level == Some(method)).expect("one of them");
        let (left, ns) = effects[way];
        let bytes_out = message.len() * left / 1000;
        let ns = ns * message.len() as u64;
        let result = Measured { bytes_in: message.len(), bytes_out, smaller: true, ns };
        judge.note_measured(key, Method::Auto, method, result, now_ns);
        taken.push(method);
    }
    let last = &taken[2000..];
    let most = last[0];
    let share = last.iter().filter(|method| **method == most).count();
    assert!(share > 1900, "{most} was taken {share} times of 2000");
    most
}

#[test]
fn more_effort_is_made_where_it_gains_and_not_where_it_does_not() {
    let level = |level| Method::Zstd { level };
    assert_eq!(settles_on([(400, 2), (230, 3), (210, 5), (180, 12)]), level(6));
    // Log lines: the first level does as well as the others.
    assert_eq!(settles_on([(450, 2), (233, 3), (240, 5), (232, 12)]), level(1));
}

fn shared() -> Policy {
    Policy { dictionary: Some(1 << 20), ..policy("auto", 1) }
}

#[test]
fn auto_uses_a_dictionary_where_it_is_faster_than_the_link_and_nowhere_else() {
    let message = payload(Kind::Random, 1, 64_000);
    // 64 KB in 100 us are 5 Gb/s.
    for (rate, expected) in [(Some(MEGABIT), true), (Some(40_000 * MEGABIT), false), (None, false)]
    {
        let mut encoder = costing(&Arc::new(AtomicU64::new(100_000)), rate);
        let compressed = compressed(&mut encoder, &shared(), &message, 400);
        let used = compressed[10..].iter().filter(|&&used| used).count();
        // A trial a second, of the two that it takes.
        assert_eq!(used > 380, expected, "{used} at {rate:?}");
        assert!(expected || used <= 3, "{used} at {rate:?}");
    }
}

#[test]
fn a_dictionary_is_left_while_the_cpu_is_busy_and_known_when_it_is_free_again() {
    let cost_ns = Arc::new(AtomicU64::new(100_000));
    let mut encoder = costing(&cost_ns, Some(100 * MEGABIT));
    let mut decoder = super::decoder(CompressionLimits::MOST);
    let file = payload(Kind::Random, 1, 64_000);
    let first = encode(&mut encoder, &shared(), &file, 0).expect("taken in");
    assert_eq!(decoded(&mut decoder, &first), file);
    // 64 KB take 5.1 ms on the link.
    cost_ns.store(20_000_000, Relaxed);
    let mut raw = 0;
    for n in 0..2000 {
        match encode(&mut encoder, &shared(), &file, n * 5_000_000) {
            Some(body) => assert_eq!(decoded(&mut decoder, &body), file),
            None => raw += 1,
        }
    }
    assert!(raw > 1900, "{raw}");
    cost_ns.store(100_000, Relaxed);
    let mut last = None;
    for n in 0..40 {
        last = encode(&mut encoder, &shared(), &file, 20_000_000_000 + n * 1_000_000_000);
        if let Some(body) = &last {
            assert_eq!(decoded(&mut decoder, body), file);
        }
    }
    assert!(last.expect("it is fast again").len() < 200, "it has remembered the file");
}
