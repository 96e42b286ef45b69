//! `link-scale`: one hub with many peers, most of them idle.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::json;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::wait::pause;

use super::probe::{self, Until};
use super::series;
use super::values::{figure, mean};
use crate::experiment::declared::{Own, OwnRunner};
use crate::experiment::definition::{Experiment, Options};
use crate::peers::link::Star;
use crate::results::Results;
use crate::results::record::Record;
use crate::results::statistics::{ascending, percentile};
use crate::results::table::{self, Style};

pub const SCALE: &str = "link-scale";

const GAP_MS: std::ops::Range<u64> = 5..20;

/// Of experiments/link-scale.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    peers: u16,
    /// Probes of the path MTU, and what else follows a handshake, are over then.
    settled_s: u64,
    /// Idle CPU time is that of this long.
    idle_s: u64,
    echoes: usize,
    quick: Quick,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    peers: u16,
    idle_s: u64,
}

static DECLARED: LazyLock<Own<Plan>> =
    LazyLock::new(|| Own::read(include_str!("../../../experiments/link-scale.toml")));

static RUNNER: OwnRunner = OwnRunner {
    name: SCALE,
    run,
    tables,
    // They are made by the run, which has no samples.
    figures: |_| Vec::new(),
    goals: None,
    plots: |_, _| Ok(Vec::new()),
    difference: |_| None,
};

pub fn experiment() -> Experiment {
    DECLARED.experiment(&RUNNER)
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let results = &mut record.results;
    series::prepare(results, options)?;
    let Own { plan, .. } = &*DECLARED;
    let usual = if options.quick { plan.quick.peers } else { plan.peers };
    let count = options.peers.unwrap_or(usual);
    ensure!((2..=5000).contains(&count), "--peers takes 2 to 5000");
    let session = Session::begin()?;
    println!("making keys of {count} peers");
    let mut star = Star::new(&session, count)?;
    star.start_hub()?;
    let [alone, _] = star.resident_kilobytes()?;
    let up = star.start_peers()?;
    println!("{count} peers are up");
    interrupt::check()?;
    let again = star.restart_hub()?;
    let [again_cpu_s, _] = star.cpu_seconds();
    println!("{count} peers are up again");
    let idle_s = if options.quick { plan.quick.idle_s } else { plan.idle_s };
    let idle = Idle::measure(&star, plan.settled_s, idle_s)?;
    let [hub, peers] = star.resident_kilobytes()?;
    let (netns, address) = star.echo_path();
    let echoes = probe::echoes(netns, address, GAP_MS, Until::Count(plan.echoes))?;
    results.environment.insert("peers".into(), json!(count));
    results.environment.insert("echoes_lost".into(), json!(echoes.lost));
    let megabytes = |kilobytes: u64| kilobytes as f64 / 1024.0;
    let round_trips = ascending(echoes.round_trips_ms.iter().copied());
    let mut add = |name: &str, value: Option<f64>, unit: &str| {
        let name = format!("scale_peers_{count}_{name}");
        results.figures.extend(value.map(|value| figure(&name, value, unit, "lower")));
    };
    add("rss_mb", Some(megabytes(hub)), "MB");
    add("rss_kb_each", Some(hub.saturating_sub(alone) as f64 / f64::from(count)), "KB");
    add("peer_rss_mb", Some(megabytes(peers) / f64::from(count)), "MB");
    add("up_s", Some(up.as_secs_f64()), "s");
    add("up_again_s", Some(again.as_secs_f64()), "s");
    add("up_again_cpu_s", Some(again_cpu_s), "s");
    add("idle_cpu_percent", Some(idle.hub_percent), "%");
    add("idle_cpu_percent_of_peers", Some(idle.peers_percent), "%");
    add("ping_ms_mean", mean(&round_trips), "ms");
    add("ping_ms_p99", percentile(&round_trips, 99.0), "ms");
    Ok(())
}

/// CPU time without frames, in percent of a core.
struct Idle {
    hub_percent: f64,
    peers_percent: f64,
}

impl Idle {
    fn measure(star: &Star, settled_s: u64, idle_s: u64) -> Result<Self> {
        pause(Duration::from_secs(settled_s))?;
        let (before, since) = (star.cpu_seconds(), Instant::now());
        pause(Duration::from_secs(idle_s))?;
        let (after, seconds) = (star.cpu_seconds(), since.elapsed().as_secs_f64());
        let percent = |side: usize| (after[side] - before[side]) / seconds * 100.0;
        Ok(Self { hub_percent: percent(0), peers_percent: percent(1) })
    }
}

fn tables(results: &Results, style: Style) -> String {
    table::figures(style, &results.figures, |value| format!("{value:.2}"))
}
