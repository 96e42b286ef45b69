//! `service`: what a year of operation asks of `vsnoop run`, in minutes: it is killed under load,
//! very many connections and taps come and go, Prometheus and people ask it, machines migrate. How
//! often is declared in experiments/service.toml.

mod connections;
mod daemon;
mod kills;
mod load;
mod part;
mod plan;
mod report;
mod rig;
mod scrape;
mod short;
mod taps;
mod terminal;

use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vsnoop::Vsnoop;

use self::connections::CONNECTIONS;
use self::daemon::Apart;
use self::part::Part;
use self::plan::Plan;
use super::declared::{Own, OwnRunner};
use super::definition::{Experiment, Options, parts};
use super::migrate;
use crate::results::record::Record;
use crate::results::{Cell, Label, Sample, Values};

pub const NAME: &str = "service";

static DECLARED: LazyLock<Own<Plan>> =
    LazyLock::new(|| Own::read(include_str!("../../../experiments/service.toml")));

static RUNNER: OwnRunner = OwnRunner {
    name: NAME,
    run,
    tables: report::tables,
    figures: report::figures,
    goals: None,
    plots: |_, _| Ok(Vec::new()),
    difference: |_| None,
};

pub fn experiment() -> Experiment {
    DECLARED.experiment(&RUNNER)
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    check(options)?;
    let asked: Vec<Part> = parts(&options.parts)?;
    // The service leaves taps alone whose holder is no VM; the holder is this process.
    nix::sys::prctl::set_name(c"qemu-lab").context("take the name of a monitor")?;
    let vsnoop = Vsnoop::find()?;
    let apart = Apart::new(&vsnoop)?;
    record.results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    for part in Part::ALL {
        let name = part.name();
        let is_asked = asked.is_empty() || asked.contains(&part);
        if is_asked && !record.has(name, 0, &Cell::default(), 0) {
            println!("{name}");
            measure(part, options, &apart, record).context(name)?;
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

fn measure(part: Part, options: &Options, apart: &Apart, record: &mut Record) -> Result<()> {
    let Own { plan, .. } = &*DECLARED;
    let counts = if options.quick { &plan.quick } else { &plan.full };
    let samples: Vec<Sample> = match part {
        Part::Kills => {
            let kills = options.rounds.unwrap_or(counts.kills);
            let done = there(record, part).count();
            let push = &mut |values| push(record, part, "kill", values);
            let session = &mut Session::begin()?;
            vec![of("all", kills::measure(session, apart, done..kills, &plan.workers, push)?)?]
        }
        Part::Connections => {
            let count = options.connections.unwrap_or(counts.connections);
            let made = there(record, part).filter_map(|one| one.values.get(CONNECTIONS).copied());
            let made = made.fold(0.0, f64::max) as u64;
            if made > 0 {
                record.results.environment.insert("service_restarted_at".into(), json!(made));
            }
            let push = &mut |values| push(record, part, "reading", values);
            let session = &mut Session::begin()?;
            vec![of(
                "last",
                connections::measure(session, apart, (made, count), plan.short, push)?,
            )?]
        }
        Part::Taps => {
            let session = &mut Session::begin()?;
            let measured = taps::measure(session, apart, counts.taps, plan.coming)?;
            let all = of("all", measured.values);
            let each = measured
                .attach_ms
                .into_iter()
                .map(|ms| of("each", Values::from([("attach_after_tap_ms".to_owned(), ms)])));
            std::iter::once(all).chain(each).collect::<Result<_>>()?
        }
        Part::Scrape => {
            let (ports, times) = (counts.ports, counts.scrapes);
            let costs = scrape::measure(&mut Session::begin()?, apart, ports, times)?;
            let sample = |cost: scrape::Cost| {
                let mut values = cost.values;
                values.insert("ports".into(), ports as f64);
                of(cost.what, values)
            };
            costs.into_iter().map(sample).collect::<Result<_>>()?
        }
        // They have a session of their own, and each is in the record as soon as it is made.
        Part::Migrations => {
            let migrations = options.rounds.unwrap_or(counts.migrations);
            return migrate::measure_service(migrations, record);
        }
    };
    apart.until_nothing_is_left()?;
    let at_ms = record.elapsed_ms();
    // The first of them says that the part is done, and so comes last.
    for (turn, sample) in samples.into_iter().enumerate().rev() {
        let turn = Some(turn);
        record.push(Sample { configuration: part.name().into(), turn, at_ms, ..sample })?;
    }
    Ok(())
}

fn of(what: &str, values: Values) -> Result<Sample> {
    let what = Label::from(what).ok().context("the name of a part is too long")?;
    Ok(Sample { what: Some(what), values, ..Sample::default() })
}

/// The samples of a part that is not done, of which an earlier part of the run has made some.
fn there(record: &Record, part: Part) -> impl Iterator<Item = &Sample> {
    record.results.samples.iter().filter(move |sample| sample.configuration == part.name())
}

/// Keeps a sample of a part that goes on. The first turn is that of the last sample.
fn push(record: &mut Record, part: Part, what: &str, values: Values) -> Result<()> {
    let (turn, at_ms) = (Some(there(record, part).count() + 1), record.elapsed_ms());
    record.push(Sample { configuration: part.name().into(), turn, at_ms, ..of(what, values)? })
}
