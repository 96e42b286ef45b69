//! `service`: what a year of operation asks of `vsnoop run`, in minutes: it is killed under load,
//! very many connections and taps come and go, Prometheus and people ask it.

mod connections;
mod daemon;
mod kills;
mod load;
mod part;
mod report;
mod rig;
mod scrape;
mod short;
mod taps;
mod terminal;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vsnoop::Vsnoop;

use self::part::Part;
use super::definition::{Experiment, Options, Takes, parts};
use crate::results::record::Record;
use crate::results::report::Words;
use crate::results::{Cell, Label, Sample, Values};

pub const NAME: &str = "service";

const KILLS: usize = 50;
const QUICK_KILLS: usize = 5;
const CONNECTIONS: u64 = 1_000_000;
const QUICK_CONNECTIONS: u64 = 20_000;
const TAPS: usize = 200;
const QUICK_TAPS: usize = 20;
/// Ports of the part `scrape`, and scrapes.
const PORTS: usize = 200;
const QUICK_PORTS: usize = 20;
const SCRAPES: usize = 20;
const QUICK_SCRAPES: usize = 3;

pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "the service: killed under load, 1,000,000 connections, taps that come and go, scrapes",
    words: Words {
        title: "The service in operation",
        what_to_see: "No connection may break, whatever is killed. Memory, maps and descriptors are \
            the same before and after the connections, and after the taps.",
        method: METHOD,
        command: "make lab RUN=service",
        tables: report::tables,
        figures: report::figures,
        goals: None,
        papers: &[],
        plots: |_, _| Ok(Vec::new()),
    },
    takes: Takes { full_min: 10, quick_min: 1 },
    run,
};

const METHOD: &str = "A service runs in a network namespace, as the host, with `hold` and \
`passive = false`; a namespace stands for the VM, behind a tap and a relay in user space, another one \
for the client. `kills`: four workers repeat connections of 1 KB to 10 MB in both directions, one of \
them to a VM that reads slowly, and one more connection lives through all; each byte is compared. The \
service is killed by SIGKILL and started again after 1 s, as its unit does it; at least one connection \
begins and ends before that, and the long one moves 1 MB each way. Then the helper or the engine, in \
turn, is killed, and another one must come by itself. `connections`: 64 clients at a time connect, send \
1000 bytes, compare the answer and close; 5000 before the first reading do not count. Readings before and \
after are without connections on record. `rss` is that of service, helper and engine together; `maps` \
are those that they have open, with the memory that the kernel states. `taps`: a tap every 300 ms, of \
which the latest ten are there. `attach_after_tap_ms` is from the start of `ip link set up` until the \
port's pins are there (looked for every millisecond). `scrape`: ports with idle VMs; the CPU time is \
that of the service's process from before the request until after its answer, and that of `vsnoop top \
--interval 1` on a terminal of 120 by 40 in each second.";

fn run(options: &Options, record: &mut Record) -> Result<()> {
    check(options)?;
    let asked: Vec<Part> = parts(&options.parts)?;
    let vsnoop = Vsnoop::find()?;
    daemon::require_unused_host(&vsnoop)?;
    record.results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    let mut session = Session::begin()?;
    for part in Part::ALL {
        let name = part.name();
        let is_asked = asked.is_empty() || asked.contains(&part);
        if !is_asked || record.has(name, 0, &Cell::default(), 0) {
            continue;
        }
        println!("{name}");
        let samples = measure(part, options, &mut session, &vsnoop).context(name)?;
        daemon::until_nothing_is_left().context(name)?;
        let at_ms = record.elapsed_ms();
        // The first of them says that the part is done, and so comes last.
        for (turn, sample) in samples.into_iter().enumerate().rev() {
            let turn = Some(turn);
            record.push(Sample { configuration: name.into(), turn, at_ms, ..sample })?;
        }
    }
    Ok(())
}

fn check(options: &Options) -> Result<()> {
    ensure!(
        options.configurations.is_empty()
            && options.sizes_bytes.is_empty()
            && options.vms.is_empty()
            && options.loads.is_empty()
            && options.path_rtts_ms.is_empty()
            && options.path_loss_percent.is_none()
            && options.path_link.is_none(),
        "{NAME} takes --quick, --part, --rounds (kills), --connections, --dir and --out only"
    );
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and attaches vsnoop: run it as root"
    );
    Ok(())
}

fn measure(
    part: Part,
    options: &Options,
    session: &mut Session,
    vsnoop: &Vsnoop,
) -> Result<Vec<Sample>> {
    let or_quick = |full, quick| if options.quick { quick } else { full };
    let of = |what: &str, values: Values| -> Result<Sample> {
        let what = Label::from(what).ok().context("the name of a part is too long")?;
        Ok(Sample { what: Some(what), values, ..Sample::default() })
    };
    match part {
        Part::Kills => {
            let kills = options.rounds.unwrap_or(or_quick(KILLS, QUICK_KILLS));
            Ok(vec![of("all", kills::measure(session, vsnoop, kills)?)?])
        }
        Part::Connections => {
            let quick = if options.quick { QUICK_CONNECTIONS } else { CONNECTIONS };
            let count = options.connections.unwrap_or(quick);
            let readings = connections::measure(session, vsnoop, count)?;
            let sample = |reading: connections::Reading| {
                of(&format!("after {}", reading.connections), reading.values)
            };
            readings.into_iter().map(sample).collect()
        }
        Part::Taps => {
            let taps = or_quick(TAPS, QUICK_TAPS);
            let taps::Measured { attach_ms, values } = taps::measure(session, vsnoop, taps)?;
            let all = of("all", values);
            let each = attach_ms
                .into_iter()
                .map(|ms| of("each", Values::from([("attach_after_tap_ms".to_owned(), ms)])));
            std::iter::once(all).chain(each).collect()
        }
        Part::Scrape => {
            let (ports, times) = (or_quick(PORTS, QUICK_PORTS), or_quick(SCRAPES, QUICK_SCRAPES));
            let costs = scrape::measure(session, vsnoop, ports, times)?;
            let sample = |cost: scrape::Cost| {
                let mut values = cost.values;
                values.insert("ports".into(), ports as f64);
                of(cost.what, values)
            };
            costs.into_iter().map(sample).collect()
        }
    }
}
