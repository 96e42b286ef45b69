//! The goals of holding, beside what was measured.
//!
//! A configuration is behind (or ahead) if the whole 95 % interval of a ratio of medians, by the
//! bootstrap, is below (or above) 1.

use std::fmt::Write;

use anyhow::Result;

use crate::experiment::spent::{self, RAN};
use crate::results::statistics::{ACKED, DELIVERED, Metric, Ratio, TOTAL};
use crate::results::statistics::{percentile, ratio_of_medians, values};
use crate::results::table::{milliseconds, ratio};
use crate::results::{Cell, Group, Results, size_text};

/// Size, and how many times sooner than `off` it is to be acknowledged at the median.
const ACKNOWLEDGED: [(u64, f64); 3] = [(100_000, 31.0), (1_000_000, 20.0), (10_000_000, 10.0)];
/// Uploads of this size are to take at most [`NEAR_HOST_TIMES`] as long as to the host itself, or
/// [`NEAR_HOST_MS`] milliseconds longer.
const NEAR_HOST_BYTES: u64 = 100_000;
const NEAR_HOST_TIMES: f64 = 3.0;
const NEAR_HOST_MS: f64 = 1.0;
const PEERS: [&str; 3] = ["off", "ahead-0", "proxy"];
/// Where a verdict needs intervals and no size has one.
const TOO_FEW: &str = "too few rounds";

pub fn render(results: &Results) -> Result<String> {
    let mut text = String::from("| cell | goal | measured | |\n|---|---|---|---|\n");
    let (mut any, mut missed) = (false, Vec::new());
    for cell in results.cells() {
        for goal in goals(results, cell) {
            let verdict = match goal.reached {
                Some(true) => "reached",
                Some(false) => "missed",
                None => TOO_FEW,
            };
            writeln!(text, "| {cell} | {} | {} | {verdict} |", goal.text, goal.measured)?;
            any = true;
            let is_missed = goal.reached == Some(false);
            missed.extend(goal.why.filter(|_| is_missed).map(|why| format!("{cell}, {why}")));
        }
    }
    if !any {
        return Ok("`vsnoop` and what it is compared with were not measured in this run.".into());
    }
    text += "\nRatios are of medians, with the interval that holds them in 95 of 100 repetitions \
             (bootstrap). *Behind* and *ahead* mean that the whole interval is below or above 1; \
             fewer than six rounds have no interval, and are not judged. On a path with a round trip, \
             vsnoop is to be behind at no size and ahead at one at least.";
    if !missed.is_empty() {
        write!(text, "\n\nWhat bounds a missed goal: {}.", missed.join("; "))?;
    }
    Ok(text)
}

struct Goal {
    text: String,
    measured: String,
    /// `None`: there are too few rounds to say.
    reached: Option<bool>,
    /// What bounds it, by what was measured.
    why: Option<String>,
}

fn goals(results: &Results, cell: Cell) -> Vec<Goal> {
    let mut goals = Vec::new();
    if cell.path_rtt_ms == 0.0 {
        goals.extend(ACKNOWLEDGED.iter().filter_map(|&(size_bytes, times)| {
            let group = Group { size_bytes, cell, what: None };
            let found = compare(results, "off", "vsnoop", &group, &ACKED)?;
            // About what this machine can do for an early ACK.
            let limit = compare(results, "off", "host", &group, &ACKED);
            let limit = limit.map(|limit| format!(" (the host itself: {})", ratio(limit.value)));
            let size = size_text(size_bytes);
            Some(Goal {
                text: format!("{size} acknowledged at p50 at least {times} times sooner than off"),
                measured: found.text() + &limit.unwrap_or_default(),
                reached: Some(found.value >= times),
                why: acknowledged_after(results, &group),
            })
        }));
        goals.extend(near_host(results, cell));
    }
    goals.extend(PEERS.iter().filter_map(|peer| delivered(results, cell, peer)));
    goals
}

fn near_host(results: &Results, cell: Cell) -> Option<Goal> {
    let group = Group { size_bytes: NEAR_HOST_BYTES, cell, what: None };
    let p50 = |name| Some(results.summary_of(name, &group, ACKED.name)?.p50);
    let (vsnoop, host) = (p50("vsnoop")?, p50("host")?);
    Some(Goal {
        text: format!(
            "{} acknowledged at p50 within {NEAR_HOST_TIMES} times or {NEAR_HOST_MS} ms of host",
            size_text(NEAR_HOST_BYTES)
        ),
        measured: format!(
            "{} times, {} ms more",
            ratio(vsnoop / host),
            milliseconds((vsnoop - host).max(0.0))
        ),
        reached: Some(vsnoop / host <= NEAR_HOST_TIMES || vsnoop - host <= NEAR_HOST_MS),
        why: None,
    })
}

/// The goal that the application gets its data no later than with this peer.
fn delivered(results: &Results, cell: Cell, peer: &str) -> Option<Goal> {
    let sizes = results.sizes().into_iter();
    let found: Vec<_> = sizes
        .filter_map(|size_bytes| {
            let group = Group { size_bytes, cell, what: None };
            let found = compare(results, peer, "vsnoop", &group, &DELIVERED)?;
            Some((size_bytes, found))
        })
        .collect();
    if found.is_empty() {
        return None;
    }
    let judged: Vec<_> =
        found.iter().map(|(_, ratio)| ratio).filter(|ratio| ratio.has_interval()).collect();
    let behind = judged.iter().any(|ratio| ratio.high < 1.0);
    let ahead = judged.iter().any(|ratio| ratio.low > 1.0);
    let distant = cell.path_rtt_ms > 0.0;
    let text = if distant { "behind at no size, ahead" } else { "behind at no size" };
    let measured: Vec<_> = found
        .iter()
        .map(|(size_bytes, ratio)| format!("{} {}", size_text(*size_bytes), ratio.text()))
        .collect();
    Some(Goal {
        text: format!("delivered, against {peer}: {text}"),
        measured: measured.join(", "),
        reached: (!judged.is_empty()).then_some(!behind && (ahead || !distant)),
        why: delivered_after(results, cell, peer, &found),
    })
}

/// What the ratio of an acknowledgement is made of.
fn acknowledged_after(results: &Results, group: &Group) -> Option<String> {
    let after = |name: &str| {
        let acked_ms = percentile(&values(results, name, group, &ACKED), 50.0)?;
        Some(format!("{} ms with {name}", milliseconds(acked_ms)))
    };
    let all: Vec<_> = ["vsnoop", "host", "off"].into_iter().filter_map(after).collect();
    Some(format!(
        "{}: acknowledged after {} ({})",
        size_text(group.size_bytes),
        all.join(", "),
        meanwhile(results, "off", group)?
    ))
}

/// What the VM did with vsnoop and with this peer, at the sizes at which vsnoop is behind, or at
/// all of them if it is at none.
fn delivered_after(
    results: &Results,
    cell: Cell,
    peer: &str,
    found: &[(u64, Ratio)],
) -> Option<String> {
    let is_behind = |ratio: &Ratio| ratio.has_interval() && ratio.high < 1.0;
    let any_behind = found.iter().any(|(_, ratio)| is_behind(ratio));
    let of = |size_bytes: u64| {
        let group = Group { size_bytes, cell, what: None };
        let [ours, theirs] = ["vsnoop", peer].map(|name| meanwhile(results, name, &group));
        Some(format!("{}: {}, {}", size_text(size_bytes), ours?, theirs?))
    };
    let sizes = found.iter().filter(|(_, ratio)| is_behind(ratio) || !any_behind);
    let parts: Vec<_> = sizes.filter_map(|(size_bytes, _)| of(*size_bytes)).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `with off the VM ran 9.5 and waited 4.6 of 14.3 ms`, from the handshake to the answer.
fn meanwhile(results: &Results, name: &str, group: &Group) -> Option<String> {
    Some(format!(
        "with {name} the VM ran {} and waited for its CPU {} of {} ms",
        milliseconds(spent::median(results, name, group, RAN)?),
        milliseconds(spent::waited(results, name, group)?),
        milliseconds(percentile(&values(results, name, group, &TOTAL), 50.0)?),
    ))
}

fn compare(
    results: &Results,
    over: &str,
    under: &str,
    group: &Group,
    metric: &Metric,
) -> Option<Ratio> {
    let values = |name| values(results, name, group, metric);
    ratio_of_medians(&values(over), &values(under))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample;
    use crate::results::statistics::summarise;
    use crate::results::testing::{results, sample};

    /// Of six rounds, the fewest that have an interval.
    fn judged(samples: &[(&str, f64, f64)], path_rtt_ms: f64) -> Vec<Goal> {
        judged_by(6, samples, path_rtt_ms)
    }

    fn judged_by(rounds: usize, samples: &[(&str, f64, f64)], path_rtt_ms: f64) -> Vec<Goal> {
        let samples = samples.iter().cycle().take(rounds * samples.len()).map(
            |&(name, acked_ms, delivered_ms)| {
                let mut sample = Sample {
                    size_bytes: 100_000,
                    delivered_ms: Some(delivered_ms),
                    ..sample(name, acked_ms)
                };
                sample.cell.path_rtt_ms = path_rtt_ms;
                sample
            },
        );
        let mut results = results(samples.collect());
        summarise(&mut results);
        let cell = results.cells()[0];
        goals(&results, cell)
    }

    fn verdicts(samples: &[(&str, f64, f64)], path_rtt_ms: f64) -> Vec<bool> {
        judged(samples, path_rtt_ms).into_iter().filter_map(|goal| goal.reached).collect()
    }

    #[test]
    fn a_goal_is_reached_at_its_number_and_missed_below_it() {
        let of = |hold, host| {
            verdicts(&[("off", 62.0, 9.0), ("vsnoop", hold, 9.0), ("host", host, 9.0)], 0.0)
        };
        // Acknowledged, near the host, not behind off.
        assert_eq!(of(2.0, 0.7), [true, true, true]);
        assert_eq!(of(2.1, 0.75), [false, true, true], "less than 3 times the host");
        assert_eq!(of(2.0, 0.5), [true, false, true], "neither 3 times nor 1 ms");
        assert_eq!(of(1.2, 0.3), [true, true, true], "4 times, but within 1 ms");
    }

    #[test]
    fn the_application_must_not_wait_longer_and_on_a_distant_path_less() {
        let of = |hold, rtt| verdicts(&[("ahead-0", 1.0, 50.0), ("vsnoop", 1.0, hold)], rtt);
        assert_eq!(of(50.0, 0.0), [true]);
        assert_eq!(of(51.0, 0.0), [false]);
        assert_eq!(of(50.0, 5.0), [false], "not ahead");
        assert_eq!(of(49.0, 5.0), [true]);
    }

    #[test]
    fn rounds_without_an_interval_give_no_verdict() {
        let of = |rounds| judged_by(rounds, &[("off", 1.0, 50.0), ("vsnoop", 1.0, 60.0)], 5.0);
        assert_eq!((of(5)[0].reached, of(6)[0].reached), (None, Some(false)));
    }

    #[test]
    fn a_missed_goal_says_what_the_vm_did_and_a_reached_one_does_not() {
        let with = |vsnoop_ms: f64| {
            let samples = [("proxy", 50.0), ("vsnoop", vsnoop_ms)].map(|(name, ms)| Sample {
                delivered_ms: Some(ms),
                values: [(RAN.into(), 20.0), (spent::QUEUED.into(), ms / 2.0)].into(),
                ..sample(name, 1.0)
            });
            let samples = samples.iter().cycle().take(12).cloned();
            render(&results(samples.collect())).unwrap()
        };
        let text = with(60.0);
        let why = "10 KB: with vsnoop the VM ran 20.0 and waited for its CPU 30.0 of 61.0 ms, with \
                   proxy the VM ran 20.0 and waited for its CPU 25.0 of 51.0 ms.";
        assert!(text.contains(why), "{text}");
        assert!(!with(40.0).contains("bounds"), "{}", with(40.0));
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert!(judged(&[("off", 1.0, 1.0), ("ahead-0", 1.0, 1.0)], 0.0).is_empty());
    }

    #[test]
    fn a_goal_beyond_the_limit_of_the_machine_stands_beside_that_limit() {
        let goals = judged(&[("off", 62.0, 9.0), ("vsnoop", 4.0, 9.0), ("host", 3.1, 9.0)], 0.0);
        assert_eq!(goals[0].measured, "16 (16-16) (the host itself: 20)");
    }
}
