//! Before the rounds of a stage: the rate of the last hop that one flow fills, the size of packets
//! there, and the round trip time.
//!
//! A last hop is the bound of the rounds only if a flow fills it. Full segments with timestamps are
//! 94 % of what a full Ethernet link carries (1448 of 1538 bytes). Rates are tried from the
//! declared one down, until a flow carries as much of one.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use vsnoop_testbed::fan_in::VM_ADDRESS;

use super::stage::{IncastStage, last_hop};
use crate::results::Results;
use crate::results::incast::Incast;
use crate::results::statistics::{ascending, percentile};

/// The least share of its rate with which a link counts as filled: 94 %, rounded.
const FILLED: f64 = 0.935;
const RATES_MBIT: [u64; 11] = [800, 600, 500, 400, 300, 200, 150, 100, 50, 25, 10];
/// A rate is tried so often before it counts as too high: other processes may have had the CPU.
const TRIES: usize = 2;

/// The goodput of one flow through a last hop.
#[derive(Clone, Copy, Debug)]
struct Tried {
    rate_mbit: u64,
    goodput_mbps: f64,
    packet_bytes: Option<f64>,
}

impl Tried {
    fn share(&self) -> f64 {
        self.goodput_mbps / self.rate_mbit as f64
    }

    fn filled(&self) -> bool {
        self.share() >= FILLED
    }
}

/// Describes the stage in the environment of the results, and returns the rate of its last hop:
/// that of `incast` if it is `asked` for or no lower one is filled, that of the samples of an
/// interrupted run, else the one that is found.
pub fn rate(
    stage: &mut IncastStage,
    results: &mut Results,
    incast: &Incast,
    asked: bool,
) -> Result<u64> {
    let (unlimited, _) = stage.one_flow(None, incast.congestion_control)?;
    let earlier = results.samples.iter().filter_map(|sample| sample.cell.incast);
    let earlier = earlier.map(|one| one.rate_mbit).max();
    let declared = incast.rate_mbit;
    let rates: Vec<_> = match earlier {
        Some(rate) => vec![rate],
        None if asked => vec![declared],
        None => {
            let lower = RATES_MBIT.into_iter().filter(|rate| *rate < declared);
            std::iter::once(declared).chain(lower).collect()
        }
    };
    let tried = search(&rates, |rate_mbit| one_flow(stage, incast, rate_mbit))?;
    let used = match tried.last() {
        Some(last) if last.filled() => *last,
        // Nothing is gained by a slow hop if none is slow enough.
        _ => tried[0],
    };
    println!("the last hop has {} Mb/s; {}", used.rate_mbit, bound(&tried, unlimited));
    describe(stage, results, incast, &tried, &used, unlimited)?;
    Ok(used.rate_mbit)
}

/// Tries rates until one is filled.
fn search(rates: &[u64], mut one: impl FnMut(u64) -> Result<Tried>) -> Result<Vec<Tried>> {
    let mut tried = Vec::new();
    for &rate_mbit in rates {
        let mut best = one(rate_mbit)?;
        for _ in 1..TRIES {
            if best.filled() {
                break;
            }
            let again = one(rate_mbit)?;
            best = if again.goodput_mbps > best.goodput_mbps { again } else { best };
        }
        tried.push(best);
        if best.filled() {
            break;
        }
    }
    Ok(tried)
}

fn one_flow(stage: &mut IncastStage, incast: &Incast, rate_mbit: u64) -> Result<Tried> {
    let hop = last_hop(&Incast { rate_mbit, ..*incast });
    let (goodput_mbps, packet_bytes) = stage.one_flow(Some(hop), incast.congestion_control)?;
    Ok(Tried { rate_mbit, goodput_mbps, packet_bytes })
}

/// Names the limit of the rounds, by the goodput of one flow.
fn bound(tried: &[Tried], unlimited_mbps: f64) -> String {
    let Some((last, higher)) = tried.split_last() else { return String::new() };
    let text = |one: &Tried| format!("{:.0} % of {} Mb/s", one.share() * 100.0, one.rate_mbit);
    if !last.filled() {
        return format!(
            "the CPU is the bound: one flow has {unlimited_mbps:.0} Mb/s without a last hop, and {}",
            text(last)
        );
    }
    let higher: String = higher.iter().map(|one| format!(", {} (the CPU is)", text(one))).collect();
    format!("the last hop is the bound: one flow fills {}{higher}", text(last))
}

fn describe(
    stage: &mut IncastStage,
    results: &mut Results,
    incast: &Incast,
    tried: &[Tried],
    used: &Tried,
    unlimited_mbps: f64,
) -> Result<()> {
    let hop = last_hop(&Incast { rate_mbit: used.rate_mbit, ..*incast });
    stage.set_last_hop(Some(hop))?;
    let sender = stage.fan_in.senders.first().context("a stage without senders")?;
    let rtt = sender.ping(VM_ADDRESS, 50)?;
    let microseconds = |times: Vec<Duration>| {
        percentile(&ascending(times.iter().map(|time| time.as_secs_f64() * 1e6)), 50.0)
    };
    let round = |value: f64| (value * 10.0).round() / 10.0;
    for (name, value) in [
        ("one_flow_without_last_hop_mbps", json!(round(unlimited_mbps))),
        ("one_flow_mbps", json!(round(used.goodput_mbps))),
        ("packet_bytes_at_last_hop", json!(used.packet_bytes.map(round))),
        ("empty_path_rtt_us_p50", json!(microseconds(rtt).map(round))),
        ("last_hop_burst_bytes", json!(hop.burst_bytes())),
        ("last_hop_mbit", json!(used.rate_mbit)),
        ("bound", json!(bound(tried, unlimited_mbps))),
    ] {
        results.environment.insert(name.into(), value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that carries as much.
    fn tried(most_mbps: f64, rates: &[u64]) -> Vec<Tried> {
        let one = |rate_mbit| {
            let goodput_mbps = most_mbps.min(rate_mbit as f64 * 0.941);
            Ok(Tried { rate_mbit, goodput_mbps, packet_bytes: None })
        };
        search(rates, one).unwrap()
    }

    #[test]
    fn the_highest_rate_that_a_flow_fills_is_found() {
        let rates = [1000, 800, 600];
        let last = |most| tried(most, &rates).last().map(|one| (one.rate_mbit, one.filled()));
        assert_eq!(last(2000.0), Some((1000, true)));
        assert_eq!(last(700.0), Some((600, true)));
        assert_eq!(last(300.0), Some((600, false)));
    }

    #[test]
    fn a_rate_is_tried_again_before_it_counts_as_too_high() {
        let mut goodputs = [500.0, 940.0].into_iter();
        let one = |rate_mbit| {
            let goodput_mbps = goodputs.next().unwrap();
            Ok(Tried { rate_mbit, goodput_mbps, packet_bytes: None })
        };
        assert_eq!(search(&[1000, 800], one).unwrap().len(), 1);
    }

    #[test]
    fn the_report_says_what_the_bound_is() {
        let text = bound(&tried(700.0, &[1000, 600]), 1500.0);
        assert!(text.starts_with("the last hop is the bound: one flow fills 94 % of"), "{text}");
        assert!(text.contains(", 70 % of 1000 Mb/s (the CPU is)"), "{text}");
        let text = bound(&tried(300.0, &[1000, 600]), 310.0);
        assert!(text.starts_with("the CPU is the bound: one flow has 310 Mb/s"), "{text}");
    }
}
