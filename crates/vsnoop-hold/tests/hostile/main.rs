//! Connections of a VM whose port has a hold, through a hostile network, with an engine that is killed at
//! any of its steps: every byte that was acknowledged arrives, or the connection is reset at both ends.
//!
//! The parts between the ends are the real ones: the decisions of flow/, the memory of bpf/hold.h, the
//! engine's [`vsnoop_hold::Flow`], [`vsnoop_hold::View`] and [`vsnoop_hold::Chain`]. `PROPTEST_CASES` sets
//! the number of scenarios, `VSNOOP_SEED` another series of them; `VSNOOP_TRACE=1` prints every segment,
//! `VSNOOP_ONLY` runs only the scenario of the series with this seed.

mod checks;
mod engine;
mod hooks;
mod scenario;
mod world;

use std::cell::RefCell;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use scenario::Scenario;
use world::{Tally, World};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

fn runner(cases: u64) -> TestRunner {
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: number("VSNOOP_SHRINK", 300) as u32,
        ..Config::default()
    };
    let mut seed = [11u8; 32];
    seed[..8].copy_from_slice(&number("VSNOOP_SEED", 0).to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Runs so many scenarios; what happened in them.
fn run(cases: u64, scenarios: &impl Strategy<Value = Scenario>) -> Tally {
    let only = number("VSNOOP_ONLY", 0);
    let sum = RefCell::new(Tally::default());
    let result = runner(cases).run(scenarios, |scenario| {
        if only == 0 || only == scenario.seed {
            sum.borrow_mut().add(&World::new(scenario).run());
        }
        Ok::<(), TestCaseError>(())
    });
    let sum = sum.into_inner();
    println!("{sum:#?}");
    if let Err(error) = result {
        panic!("{error}");
    }
    sum
}

#[test]
fn every_acknowledged_byte_arrives_or_the_connection_is_reset() {
    let cases = number("PROPTEST_CASES", 1_500);
    let sum = run(cases, &scenario::scenario());
    // A run in which something never happened would have proved nothing of it.
    if cases >= 1_500 && number("VSNOOP_ONLY", 0) == 0 {
        for (what, n) in sum.counts() {
            assert!(n > 0 || what == "drained_pause", "no {what} in {cases} scenarios");
        }
    }
}

#[test]
fn a_paused_port_is_drained() {
    let sum = run(number("PROPTEST_CASES", 300), &scenario::paused());
    assert!(sum.drained_pause > 0 && sum.held > 0);
}

/// One kill in each run, at the first of the engine's steps, then at the second, and so on.
#[test]
fn the_engine_may_be_killed_at_every_step() {
    let mut runner = runner(1);
    let mut sum = Tally::default();
    let mut steps = 0;
    while steps < number("VSNOOP_STEPS", 2_000) {
        let mut scenario =
            scenario::scenario().new_tree(&mut runner).expect("a scenario").current();
        scenario.connections.truncate(1);
        scenario.engine.crashes = 0;
        let calm = World::new(scenario.clone()).run();
        if calm.held == 0 || calm.resends == 0 || calm.engine_step > 600 {
            continue;
        }
        for step in 1..=calm.engine_step {
            scenario.engine.crash_at = Some(step);
            sum.add(&World::new(scenario.clone()).run());
        }
        steps += calm.engine_step;
    }
    println!("{sum:#?}");
    assert!(sum.crashes >= steps * 9 / 10, "{} crashes at {steps} steps", sum.crashes);
}
