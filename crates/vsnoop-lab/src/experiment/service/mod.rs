//! `service`: what a year of operation asks of `vsnoop run`, in minutes: it is killed under load,
//! very many connections and taps come and go, Prometheus and people ask it, machines migrate.

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
use super::migrate;
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
const MIGRATIONS: usize = 100;
const QUICK_MIGRATIONS: usize = 2;

pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "the service: killed under load, 1,000,000 connections, taps, scrapes, 100 migrations",
    words: Words {
        title: "The service in operation",
        what_to_see: "No connection may break, whatever is killed, and no request fail in a \
            migration. Memory, maps and descriptors are the same before and after the connections, \
            and after the taps.",
        method: METHOD,
        command: "make lab RUN=service",
        tables: report::tables,
        figures: report::figures,
        goals: None,
        papers: &[],
        plots: |_, _| Ok(Vec::new()),
    },
    takes: Takes { full_min: 32, quick_min: 3 },
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
--interval 1` on a terminal of 120 by 40 in each second. `migrations` are those of the experiment \
`migrate` with its configuration `service`.";

fn run(options: &Options, record: &mut Record) -> Result<()> {
    check(options)?;
    let asked: Vec<Part> = parts(&options.parts)?;
    let vsnoop = Vsnoop::find()?;
    daemon::require_unused_host(&vsnoop)?;
    record.results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    for part in Part::ALL {
        let name = part.name();
        let is_asked = asked.is_empty() || asked.contains(&part);
        if is_asked && !record.has(name, 0, &Cell::default(), 0) {
            println!("{name}");
            measure(part, options, &vsnoop, record).context(name)?;
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
        "{NAME} takes --quick, --part, --rounds (kills, migrations), --connections, --dir and --out only"
    );
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and attaches vsnoop: run it as root"
    );
    Ok(())
}

fn measure(part: Part, options: &Options, vsnoop: &Vsnoop, record: &mut Record) -> Result<()> {
    let or_quick = |full, quick| if options.quick { quick } else { full };
    let of = |what: &str, values: Values| -> Result<Sample> {
        let what = Label::from(what).ok().context("the name of a part is too long")?;
        Ok(Sample { what: Some(what), values, ..Sample::default() })
    };
    let samples: Vec<Sample> = match part {
        Part::Kills => {
            let kills = options.rounds.unwrap_or(or_quick(KILLS, QUICK_KILLS));
            vec![of("all", kills::measure(&mut Session::begin()?, vsnoop, kills)?)?]
        }
        Part::Connections => {
            let quick = if options.quick { QUICK_CONNECTIONS } else { CONNECTIONS };
            let count = options.connections.unwrap_or(quick);
            let readings = connections::measure(&mut Session::begin()?, vsnoop, count)?;
            let sample = |reading: connections::Reading| {
                of(&format!("after {}", reading.connections), reading.values)
            };
            readings.into_iter().map(sample).collect::<Result<_>>()?
        }
        Part::Taps => {
            let taps = or_quick(TAPS, QUICK_TAPS);
            let measured = taps::measure(&mut Session::begin()?, vsnoop, taps)?;
            let all = of("all", measured.values);
            let each = measured
                .attach_ms
                .into_iter()
                .map(|ms| of("each", Values::from([("attach_after_tap_ms".to_owned(), ms)])));
            std::iter::once(all).chain(each).collect::<Result<_>>()?
        }
        Part::Scrape => {
            let (ports, times) = (or_quick(PORTS, QUICK_PORTS), or_quick(SCRAPES, QUICK_SCRAPES));
            let costs = scrape::measure(&mut Session::begin()?, vsnoop, ports, times)?;
            let sample = |cost: scrape::Cost| {
                let mut values = cost.values;
                values.insert("ports".into(), ports as f64);
                of(cost.what, values)
            };
            costs.into_iter().map(sample).collect::<Result<_>>()?
        }
        // They have a session of their own, and each is in the record as soon as it is made.
        Part::Migrations => {
            let migrations = options.rounds.unwrap_or(or_quick(MIGRATIONS, QUICK_MIGRATIONS));
            return migrate::measure_service(migrations, record);
        }
    };
    daemon::until_nothing_is_left()?;
    let at_ms = record.elapsed_ms();
    // The first of them says that the part is done, and so comes last.
    for (turn, sample) in samples.into_iter().enumerate().rev() {
        let turn = Some(turn);
        record.push(Sample { configuration: part.name().into(), turn, at_ms, ..sample })?;
    }
    Ok(())
}
