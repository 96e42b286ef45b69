//! Checks the round trip of a path before the measurements on it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::stage::{HOST, Stage};

use crate::results::statistics::{ascending, percentile};

const PINGS: u16 = 40;
/// The largest accepted difference between the median of the measured round trips and the requested
/// one.
const TOLERANCE: Duration = Duration::from_millis(1);
const TRIES: usize = 6;
const PAUSE: Duration = Duration::from_secs(1);

/// Round trips measured on a path without load.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    pub p50_ms: f64,
    pub p90_ms: f64,
}

/// Measures the round trip to the host; an error if it differs from the requested one in each of
/// [`TRIES`] measurements: other work on the host may come and go.
pub fn check_path(stage: &Stage, expected: Duration) -> Result<RoundTrip> {
    let expected_ms = expected.as_secs_f64() * 1e3;
    let mut measured = round_trip(stage)?;
    for _ in 1..TRIES {
        if is_near(&measured, expected_ms) {
            break;
        }
        std::thread::sleep(PAUSE);
        interrupt::check()?;
        measured = round_trip(stage)?;
    }
    ensure!(
        is_near(&measured, expected_ms),
        "the path has a round trip of {:.2} ms instead of {expected_ms} ms: is the host's core \
         busy with something else?",
        measured.p50_ms
    );
    Ok(measured)
}

fn is_near(measured: &RoundTrip, expected_ms: f64) -> bool {
    (measured.p50_ms - expected_ms).abs() <= TOLERANCE.as_secs_f64() * 1e3
}

fn round_trip(stage: &Stage) -> Result<RoundTrip> {
    let times = stage.client().ping(HOST, PINGS)?;
    let times = ascending(times.iter().map(|time| time.as_secs_f64() * 1e3));
    let at = |percent| percentile(&times, percent).context("no round trip was measured");
    Ok(RoundTrip { p50_ms: at(50.0)?, p90_ms: at(90.0)? })
}
