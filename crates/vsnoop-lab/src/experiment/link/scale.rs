//! `link-scale`: one hub with many peers, most of them idle.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::wait::pause;

use super::probe::{self, Until};
use super::series;
use super::values::{figure, mean};
use crate::experiment::definition::{Experiment, Options, Takes};
use crate::peers::link::Star;
use crate::results::Results;
use crate::results::record::Record;
use crate::results::report::Words;
use crate::results::statistics::{ascending, percentile};
use crate::results::table::{self, Style};

const PEERS: u16 = 1000;
const QUICK_PEERS: u16 = 50;
/// Idle CPU time is that of this long.
const IDLE: Duration = Duration::from_secs(60);
const QUICK_IDLE: Duration = Duration::from_secs(5);
/// Probes of the path MTU, and what else follows a handshake, are over then.
const SETTLED: Duration = Duration::from_secs(15);
const ECHOES: usize = 200;
const GAP_MS: std::ops::Range<u64> = 5..20;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "link-scale",
    about: "one hub with 1000 peers: memory, idle CPU time, time until all are up, round trip",
    words: Words {
        title: "Links: one hub with many peers",
        what_to_see: "Of the hub its memory and idle CPU time, and the time until all peers were up: \
            when they start one after the other, and when the hub starts again and all of them call it.",
        method: METHOD,
        command: "make lab RUN=link-scale",
        tables,
        // They are made by the run, which has no samples.
        figures: |_| Vec::new(),
        goals: None,
        papers: &[],
        plots: |_, _| Ok(Vec::new()),
    },
    takes: Takes { full_min: 5, quick_min: 1 },
    run,
};

const METHOD: &str = "The hub is a link process in a namespace with a tap; every peer is a link process \
of its own with a key, an address and a tap of its own, over `udp`, that calls the hub. Two peers have a \
namespace each, the others share one, behind one veth. So the hub's socket, sessions, tables and timers are \
those of so many hosts; the machine's CPUs are shared by all processes, so the time to come up is that of \
the peers as well. Idle CPU time is that of the hub's process over a minute without frames, 15 s after the \
last peer came up: keep-alive probes of all peers. Echoes go from one peer to another, relayed by the hub, \
while all others idle.";

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let results = &mut record.results;
    series::prepare(results, options)?;
    let usual = if options.quick { QUICK_PEERS } else { PEERS };
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
    let idle = Idle::measure(&star, if options.quick { QUICK_IDLE } else { IDLE })?;
    let [hub, peers] = star.resident_kilobytes()?;
    let (netns, address) = star.echo_path();
    let echoes = probe::echoes(netns, address, GAP_MS, Until::Count(ECHOES))?;
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
    fn measure(star: &Star, time: Duration) -> Result<Self> {
        pause(SETTLED)?;
        let (before, since) = (star.cpu_seconds(), Instant::now());
        pause(time)?;
        let (after, seconds) = (star.cpu_seconds(), since.elapsed().as_secs_f64());
        let percent = |side: usize| (after[side] - before[side]) / seconds * 100.0;
        Ok(Self { hub_percent: percent(0), peers_percent: percent(1) })
    }
}

fn tables(results: &Results, style: Style) -> String {
    table::figures(style, &results.figures, |value| format!("{value:.2}"))
}
