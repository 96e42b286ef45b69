//! `link-scale`: one hub with many peers, most of them idle.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::wait::pause;

use super::probe::{self, Until};
use super::series;
use super::values::{figure, mean};
use crate::experiment::declared::{Own, OwnRunner};
use crate::experiment::definition::{Experiment, Options};
use crate::peers::link::Star;
use crate::results::record::Record;
use crate::results::statistics::{ascending, percentile};
use crate::results::table::{self, Style};
use crate::results::{Cell, Figure, Results, Sample};

pub const SCALE: &str = "link-scale";

const GAP_MS: std::ops::Range<u64> = 5..20;
/// In the environment.
const PEERS: &str = "peers";
/// Values of samples: memory of the hub without peers and with all of them, and of all peers.
const ALONE: &str = "hub_alone_kb";
const HUB: &str = "hub_kb";
const ALL_PEERS: &str = "peers_kb";
/// Of an echo.
const RTT: &str = "rtt_ms";

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
    figures,
    goals: None,
    plots: |_, _| Ok(Vec::new()),
    difference: |_| None,
};

pub fn experiment() -> Experiment {
    DECLARED.experiment(&RUNNER)
}

/// A part of the run: it has a sample, or one for each echo. A run that goes on leaves out those
/// that are there.
#[derive(Clone, Copy)]
enum Stage {
    /// All peers come up, one after the other.
    Up,
    /// The hub starts again, and all of them call it.
    Again,
    Idle,
    Echoes,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Up, Self::Again, Self::Idle, Self::Echoes];

    /// The configuration of its samples.
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Again => "again",
            Self::Idle => "idle",
            Self::Echoes => "echoes",
        }
    }

    fn is_there(self, record: &Record) -> bool {
        record.has(self.name(), 0, &Cell::default(), 0)
    }

    fn push(self, record: &mut Record, turn: usize, values: &[(&str, f64)]) -> Result<()> {
        let at_ms = record.elapsed_ms();
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let (configuration, turn) = (self.name().into(), Some(turn));
        record.push(Sample { configuration, turn, at_ms, values, ..Sample::default() })
    }
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    series::prepare(&mut record.results, options)?;
    if Stage::ALL.into_iter().all(|stage| stage.is_there(record)) {
        return Ok(());
    }
    let Own { plan, .. } = &*DECLARED;
    let usual = if options.quick { plan.quick.peers } else { plan.peers };
    let count = options.peers.unwrap_or(usual);
    ensure!((2..=5000).contains(&count), "--peers takes 2 to 5000");
    record.results.environment.insert(PEERS.into(), json!(count));
    let session = Session::begin()?;
    println!("making keys of {count} peers");
    let mut star = Star::new(&session, count)?;
    star.start_hub()?;
    let [alone, _] = star.resident_kilobytes()?;
    // All other stages need them.
    let up = star.start_peers()?;
    println!("{count} peers are up");
    if !Stage::Up.is_there(record) {
        Stage::Up.push(record, 0, &[("up_s", up.as_secs_f64()), (ALONE, alone as f64)])?;
    }
    interrupt::check()?;
    if !Stage::Again.is_there(record) {
        let again = star.restart_hub()?;
        let [cpu_s, _] = star.cpu_seconds();
        let values = [("up_again_s", again.as_secs_f64()), ("up_again_cpu_s", cpu_s)];
        Stage::Again.push(record, 0, &values)?;
        println!("{count} peers are up again");
    }
    if !Stage::Idle.is_there(record) {
        let idle_s = if options.quick { plan.quick.idle_s } else { plan.idle_s };
        let idle = Idle::measure(&star, plan.settled_s, idle_s)?;
        let [hub, peers] = star.resident_kilobytes()?;
        let values = [
            ("idle_cpu_percent", idle.hub_percent),
            ("idle_cpu_percent_of_peers", idle.peers_percent),
            (HUB, hub as f64),
            (ALL_PEERS, peers as f64),
        ];
        Stage::Idle.push(record, 0, &values)?;
    }
    if !Stage::Echoes.is_there(record) {
        let (netns, address) = star.echo_path();
        let echoes = probe::echoes(netns, address, GAP_MS, Until::Count(plan.echoes))?;
        record.results.environment.insert("echoes_lost".into(), json!(echoes.lost));
        // The first of them says that the stage is done, and so comes last.
        for (turn, rtt_ms) in echoes.round_trips_ms.into_iter().enumerate().rev() {
            Stage::Echoes.push(record, turn, &[(RTT, rtt_ms)])?;
        }
    }
    Ok(())
}

/// Names end with what they are, and have the number of peers.
fn figures(results: &Results) -> Vec<Figure> {
    let Some(count) = results.environment.get(PEERS).and_then(Value::as_f64) else {
        return Vec::new();
    };
    let all = |name: &str| {
        ascending(results.samples.iter().filter_map(|one| one.values.get(name).copied()))
    };
    let one = |name: &str| all(name).first().copied();
    let hub_kb = one(HUB);
    let each_kb = hub_kb.zip(one(ALONE)).map(|(hub, alone)| (hub - alone).max(0.0) / count);
    let round_trips = all(RTT);
    let values = [
        ("rss_mb", hub_kb.map(|kilobytes| kilobytes / 1024.0), "MB"),
        ("rss_kb_each", each_kb, "KB"),
        ("peer_rss_mb", one(ALL_PEERS).map(|kilobytes| kilobytes / 1024.0 / count), "MB"),
        ("up_s", one("up_s"), "s"),
        ("up_again_s", one("up_again_s"), "s"),
        ("up_again_cpu_s", one("up_again_cpu_s"), "s"),
        ("idle_cpu_percent", one("idle_cpu_percent"), "%"),
        ("idle_cpu_percent_of_peers", one("idle_cpu_percent_of_peers"), "%"),
        ("ping_ms_mean", mean(&round_trips), "ms"),
        ("ping_ms_p99", percentile(&round_trips, 99.0), "ms"),
    ];
    let figure = |(name, value, unit): (&str, Option<f64>, &str)| {
        Some(figure(&format!("scale_peers_{count}_{name}"), value?, unit, "lower"))
    };
    values.into_iter().filter_map(figure).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_a_run_that_goes_on_are_there_and_figures_are_of_their_samples() {
        let dir = std::env::temp_dir().join(format!("scale-{}", std::process::id()));
        let begin = || {
            let environment = [(PEERS.to_owned(), json!(50))].into();
            Record::open(&dir, Results::begin(SCALE, environment), "same").unwrap()
        };
        let mut record = begin();
        Stage::Up.push(&mut record, 0, &[("up_s", 2.0), (ALONE, 1000.0)]).unwrap();
        // Interrupted among the echoes.
        Stage::Echoes.push(&mut record, 1, &[(RTT, 0.3)]).unwrap();
        drop(record);
        let mut record = begin();
        let there = Stage::ALL.map(|stage| stage.is_there(&record));
        assert_eq!(there, [true, false, false, false]);
        Stage::Idle.push(&mut record, 0, &[(HUB, 51_200.0), (ALL_PEERS, 512_000.0)]).unwrap();
        let figures = figures(&record.close());
        std::fs::remove_dir_all(&dir).unwrap();
        let value = |name: &str| {
            let name = format!("scale_peers_50_{name}");
            figures.iter().find(|one| one.name == name).map(|one| one.value)
        };
        assert_eq!((value("up_s"), value("rss_mb")), (Some(2.0), Some(50.0)));
        assert_eq!((value("rss_kb_each"), value("peer_rss_mb")), (Some(1004.0), Some(10.0)));
        assert_eq!((value("ping_ms_mean"), value("up_again_s")), (Some(0.3), None));
    }
}
