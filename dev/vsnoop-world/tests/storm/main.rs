//! Random storms: every connection stays safe, and ends.
//!
//! The checks of the world cover safety at each segment: no byte is acknowledged that is neither
//! held nor delivered, no stream has a wrong byte. Here a connection must end whole, unless an end
//! aborts it, or the same storm ends in the same way without vsnoop. Faults of smoltcp are accepted
//! ([`Ending::CutShort`], [`Ending::LacksFin`]).
//!
//! `VSNOOP_STORM=KIND:SEED` replays one (`VSNOOP_TRACE=1` prints every segment);
//! `VSNOOP_STORM_SECONDS` sets the time for each kind of VM, with other seeds in each run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vsnoop_world::guest::Kind;
use vsnoop_world::storm::{is_aborted, is_rolled_back, scenario};
use vsnoop_world::world::{Ending, World};

/// Storms of each kind in `make test`.
const FEW: u64 = 500;

/// Runs one storm; an error says what failed.
fn run(kind: Kind, seed: u64) -> Result<(), String> {
    let sc = scenario(kind, seed);
    let name = format!("VSNOOP_STORM={kind:?}:{seed} VSNOOP_TRACE=1");
    let world = AssertUnwindSafe(|| World::new(sc.clone()).run());
    let with = catch_unwind(world).map_err(|_| format!("a check failed: {name}"))?;
    for (c, &(end, _)) in with.ends.iter().enumerate() {
        let is_good = matches!(end, Ending::Exact | Ending::CutShort | Ending::LacksFin);
        if is_good || is_aborted(&sc, c) {
            continue;
        }
        // smoltcp drops a segment with an old ACK, and does not answer it
        // (docs/reference/limits.md).
        if end == Ending::Reset && kind == Kind::Smol && with.moved > 0 {
            continue;
        }
        // Both processes that had its sockets died, or a detach did not wait for it any longer.
        if end == Ending::Reset && (with.has_lost_sockets || with.split.reset > 0) {
            continue;
        }
        // Where the host holds nothing, its ends may wait for each other as without vsnoop.
        if is_rolled_back(&sc, c) && (end == Ending::Reset || with.outstanding[c] == 0) {
            continue;
        }
        let mut without = sc.clone();
        without.without = true;
        let end_without = World::new(without).run().ends[c].0;
        if end != end_without {
            return Err(format!("{end:?}, without {end_without:?}: {name} {}", with.summary));
        }
    }
    Ok(())
}

/// Storms that have found a fault of smoltcp or of the simulation.
const FOUND: [(Kind, u64); 4] = [
    // It sent something by its other port before the engine found it there.
    (Kind::Smol, 1_795_953_042_215_133),
    (Kind::Smol, 1_795_952_399_514_642),
    // It did not repeat its FIN.
    (Kind::Smol, 1_795_952_399_515_984),
    // A VM that forwards was rolled back, and the clock with it.
    (Kind::Linux, 178),
];

#[test]
fn storms_that_have_found_something_end() {
    for (kind, seed) in FOUND {
        run(kind, seed).unwrap_or_else(|why| panic!("{why}"));
    }
}

fn storms(kind: Kind) {
    if let Ok(one) = std::env::var("VSNOOP_STORM") {
        let (name, seed) = one.split_once(':').expect("KIND:SEED");
        if name == format!("{kind:?}") {
            run(kind, seed.parse().expect("a seed")).unwrap_or_else(|why| panic!("{why}"));
        }
        return;
    }
    let seconds = std::env::var("VSNOOP_STORM_SECONDS").ok().and_then(|v| v.parse().ok());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    // Long runs use new seeds.
    let first = if seconds.is_some() { since_1970.as_micros() as u64 } else { 0 };
    let start = Instant::now();
    let mut wrong = Vec::new();
    let mut seed = first;
    while match seconds {
        Some(seconds) => start.elapsed() < Duration::from_secs(seconds),
        None => seed < FEW,
    } {
        wrong.extend(run(kind, seed).err());
        seed += 1;
    }
    println!("{kind:?}: {} storms in {:?}", seed - first, start.elapsed());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), seed - first, wrong.join("\n"));
}

#[test]
fn a_vm_like_linux_survives_storms() {
    storms(Kind::Linux);
}

#[test]
fn a_vm_with_smoltcp_survives_storms() {
    storms(Kind::Smol);
}

#[test]
fn a_vm_with_lwip_survives_storms() {
    storms(Kind::Lwip);
}
