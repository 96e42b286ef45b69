//! Each transfer with vsnoop and without it: one that succeeds without must succeed with it.
//!
//! `VSNOOP_SEEDS` sets the number of each; `VSNOOP_CASE`, `VSNOOP_KIND` and `VSNOOP_ONLY` (a seed)
//! choose, `VSNOOP_TRACE=1` prints every segment.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vsnoop_world::cases::{Case, scenario};
use vsnoop_world::guest::Kind;
use vsnoop_world::world::{Ending, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

fn is_chosen(name: &str, what: &str) -> bool {
    std::env::var(name).map_or(true, |wanted| wanted == what)
}

/// The mean of the middle half, which outliers and rounding do not affect.
fn middle(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    let quarter = values.len() / 4;
    let half = &values[quarter..values.len() - quarter];
    half.iter().sum::<u64>() / half.len().max(1) as u64
}

/// Runs all cases with this receiver; returns the failures.
fn run(kind: Kind) -> Vec<String> {
    let mut wrong = Vec::new();
    if !is_chosen("VSNOOP_KIND", &format!("{kind:?}")) {
        return wrong;
    }
    // Few: `make soak` runs many. The seeds, and so the results, are the same each time.
    let seeds = number("VSNOOP_SEEDS").unwrap_or(20);
    for case in Case::all() {
        let name = format!("{case:?}");
        if !case.is_for(kind) || !is_chosen("VSNOOP_CASE", &name) {
            continue;
        }
        let (mut with_ms, mut without_ms) = (Vec::new(), Vec::new());
        let (mut early, mut crashes) = (0, 0);
        let (mut leg, mut leg_without) = (0, 0);
        let (mut split, mut joined) = (0, 0);
        let (mut grants, mut dropped, mut dropped_without) = (0, 0, 0);
        for seed in 0..seeds {
            if number("VSNOOP_ONLY").is_some_and(|only| only != seed) {
                continue;
            }
            let again = format!(
                "VSNOOP_KIND={kind:?} VSNOOP_CASE='{name}' VSNOOP_ONLY={seed} VSNOOP_TRACE=1"
            );
            let without = World::new(scenario(case, kind, seed, true)).run();
            if number("VSNOOP_TRACE").is_some() {
                eprintln!("--- with vsnoop");
            }
            let world = AssertUnwindSafe(|| World::new(scenario(case, kind, seed, false)).run());
            let Ok(with) = catch_unwind(world) else {
                wrong.push(format!("a check failed: {again}"));
                continue;
            };
            early += with.stats.early_acks;
            crashes += with.crashes;
            (leg, leg_without) = (leg + with.leg_bytes, leg_without + without.leg_bytes);
            (split, joined) = (split + with.split.split, joined + with.split.joined);
            grants += with.grants;
            dropped += with.dropped;
            dropped_without += without.dropped;
            for (&(end, took), &(end_without, took_without)) in with.ends.iter().zip(&without.ends)
            {
                let may_be_reset = case.may_be_reset() || with.has_lost_sockets;
                let is_excused = end == Ending::Reset && may_be_reset;
                if end != Ending::Exact && end != end_without && !is_excused {
                    wrong.push(format!("{end:?}: {again} {}", with.summary));
                }
                let is_reset = end == Ending::Reset && end_without == Ending::Reset;
                if is_reset && took > took_without * 13 / 10 {
                    wrong.push(format!("it is reset after {} ms: {again}", took / 1_000_000));
                }
                if end == Ending::Exact && end_without == Ending::Exact {
                    with_ms.push(took / 1_000_000);
                    without_ms.push(took_without / 1_000_000);
                }
            }
        }
        let exact = with_ms.len();
        let longest = |all: &[u64]| all.iter().max().copied().unwrap_or(0);
        let (longest_ms, longest_without_ms) = (longest(&with_ms), longest(&without_ms));
        let (with_ms, without_ms) = (middle(with_ms), middle(without_ms));
        println!(
            "{kind:?} {name}: {with_ms} ms, without {without_ms} ms (longest {longest_ms} and {longest_without_ms}), {exact} exact, {early} early ACKs, {crashes} crashes"
        );
        if case.has_downloads() {
            println!("  {split} split, {joined} joined");
            // Each is split, and those that are joined are split again.
            let least = if case.is_split_again() { seeds } else { seeds / 2 };
            if number("VSNOOP_ONLY").is_none() && split < least {
                wrong.push(format!("{kind:?} {name}: only {split} connections were split"));
            }
        }
        if case.is_forwarded_far() {
            println!("  {leg} bytes on the leg, without {leg_without}");
            if leg * 100 > leg_without * 105 {
                wrong.push(format!("{kind:?} {name}: {leg} bytes on the leg, not {leg_without}"));
            }
        }
        if case.has_incast() {
            println!("  {dropped} drops, without {dropped_without}, {grants} grants");
            if grants == 0 || dropped >= dropped_without / 4 {
                wrong.push(format!("{kind:?} {name}: the last hop drops {dropped} segments"));
            }
        }
        if case.delay_ms().is_some_and(|delay_ms| with_ms > without_ms * 13 / 10 + delay_ms) {
            wrong.push(format!("{kind:?} {name}: {with_ms} ms instead of {without_ms}"));
        }
    }
    wrong
}

#[test]
fn a_vm_like_linux_fares_no_worse_than_without() {
    let wrong = run(Kind::Linux);
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

/// The checks notice a splitter that joins while bytes are on their way.
#[test]
fn what_is_joined_too_early_is_noticed() {
    for seed in 0..8 {
        let mut early = scenario(Case::DownloadsPaused(20), Kind::Linux, seed, false);
        early.machines[0].joins_early = true;
        let is_wrong = catch_unwind(AssertUnwindSafe(|| World::new(early).run().ends[0].0))
            .is_ok_and(|end| end == Ending::Exact);
        if !is_wrong {
            return;
        }
    }
    panic!("8 connections that were joined too early are exact");
}

#[test]
fn a_vm_with_smoltcp_fares_no_worse_than_without() {
    let wrong = run(Kind::Smol);
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_vm_with_lwip_fares_no_worse_than_without() {
    let wrong = run(Kind::Lwip);
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
