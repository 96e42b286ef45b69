//! A real byte stream through a hostile simulated network, with the hooks on
//! the way, and the invariants of the design checked at each step.
//!
//! `PROPTEST_CASES` sets the number of connections, `VSNOOP_SEED` another
//! series of them; `VSNOOP_TRACE=1` prints every segment.

mod checks;
mod hooks;
mod scenario;
mod world;

use std::cell::RefCell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use world::{Tally, World};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

fn add(sum: &mut Tally, t: Tally) {
    sum.exact += t.exact;
    sum.reset += t.reset;
    sum.early += t.early;
    sum.reacked += t.reacked;
    sum.suppressed += t.suppressed;
    sum.rewritten += t.rewritten;
    sum.losses += t.losses;
    sum.helper_resets += t.helper_resets;
    sum.ring_full += t.ring_full;
    sum.aside += t.aside;
    sum.capped += t.capped;
    sum.mid_flow += t.mid_flow;
    sum.closed += t.closed;
    sum.drained_detach += t.drained_detach;
    sum.excused += t.excused;
    for (sum, n) in sum.offline.iter_mut().zip(t.offline) {
        *sum += n;
    }
}

#[test]
fn every_acknowledged_byte_arrives_or_the_connection_is_reset() {
    let cases = number("PROPTEST_CASES", 10_000);
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    };
    let mut seed = [7u8; 32];
    seed[..8].copy_from_slice(&number("VSNOOP_SEED", 0).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let sum = RefCell::new(Tally::default());
    let result = TestRunner::new_with_rng(config, rng).run(&scenario::scenario(), |scenario| {
        let world = World::new(scenario);
        add(&mut sum.borrow_mut(), world.run());
        Ok::<(), TestCaseError>(())
    });
    let sum = sum.into_inner();
    println!("{sum:#?}");
    if let Err(error) = result {
        panic!("{error}");
    }
    // A run in which something never happened would have proved nothing of it.
    if cases >= 10_000 {
        let happened = [
            ("exact ends", sum.exact),
            ("resets", sum.reset),
            ("early ACKs", sum.early),
            ("answered retransmissions", sum.reacked),
            ("suppressed ACKs", sum.suppressed),
            ("rewritten ACKs", sum.rewritten),
            ("losses in the guest", sum.losses),
            ("resets by the helper", sum.helper_resets),
            ("segments that the ring refused", sum.ring_full),
            ("segments left to a prompt VM", sum.aside),
            ("capped windows", sum.capped),
            ("mid-flow records", sum.mid_flow),
            ("closed records", sum.closed),
            ("drained detaches", sum.drained_detach),
            ("holes", sum.offline[0]),
            ("full rings", sum.offline[1]),
            ("congestion marks", sum.offline[2]),
        ];
        for (what, n) in happened {
            assert!(n > 0, "no {what} in {cases} connections");
        }
    }
}
