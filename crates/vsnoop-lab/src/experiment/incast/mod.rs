//! `incast`: many senders answer one machine at once, through a last hop with a shallow buffer.
//!
//! The experiments of the ICTCP paper (Wu, Feng, Guo, Zhang: ICTCP, CoNEXT 2010). In a round the
//! machine requests data from all senders at the same time; the round ends when all data have
//! arrived. If the buffer of the last hop overflows, whole windows are lost, and the round lasts
//! until the last retransmission timeout. [`plan`] has the rounds, [`stage`] measures them,
//! [`ends`] are the two ends of the traffic, some of them in [`guests`]. [`declaration`] reads what
//! is declared in experiments/incast.toml.

mod calibration;
mod configuration;
mod connections;
mod declaration;
mod ends;
mod figures;
mod goals;
mod guests;
mod paper;
mod plan;
mod plots;
mod selection;
mod stage;
mod tables;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vsnoop::Vsnoop;

use super::definition::{Experiment, Options};
use super::progress::Progress;
use crate::results::incast::Part;
use crate::results::record::Record;
use crate::results::report::{Against, Words};
use crate::results::{self, ROUNDS_PLANNED, Sample};
use guests::Boot;
use paper::PaperFigure;
use plan::Point;
pub use selection::Selection;
use stage::IncastStage;

/// Counted rounds of a block; the next block has the next configuration.
const BLOCK_ROUNDS: usize = 10;
/// Longest time of a point's measurements, even if rounds remain.
const BUDGET: Duration = Duration::from_secs(30);
/// net.core.netdev_max_backlog, packets: many senders send more at once than the default of 1000,
/// and packets may be lost at the last hop only.
const BACKLOG_PACKETS: &str = "20000";

pub const NAME: &str = "incast";

pub fn experiment() -> Experiment {
    let declared = declaration::read();
    let words = Words {
        title: &declared.title,
        what_to_see: &declared.what_to_see,
        method: &declared.method,
        command: "make lab RUN=incast",
        tables: tables::render,
        figures: figures::figures,
        goals: Some(&goals::render),
        // Kept as long as the declaration.
        papers: declared.figures.iter().map(against).collect::<Vec<_>>().leak(),
        plots: plots::draw,
    };
    Experiment { name: NAME, about: &declared.about, words, takes: declared.takes, run }
}

fn against(figure: &'static PaperFigure) -> Against {
    let difference = move |results: &_| figure.difference(results);
    Against {
        paper: &figure.paper,
        difference: Box::leak(Box::new(difference)),
        plot: Some(&figure.plot),
    }
}

/// How many rounds of all configurations a run has, where time cuts none.
pub fn planned_rounds(options: &Options) -> Result<usize> {
    let points = plan::points(options)?;
    Ok(points.iter().map(|point| point.rounds * point.configurations.len()).sum())
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and attaches vsnoop: run it as root"
    );
    let points = plan::points(options)?;
    let attaches = points
        .iter()
        .any(|point| point.configurations.iter().any(|configuration| configuration.attaches()));
    let vsnoop = if attaches { Some(Vsnoop::find()?) } else { None };
    let has_guests = points.iter().any(|point| point.incast.part.has_guests());
    let image = if has_guests { Some(guests::image()?) } else { None };
    let mut session = Session::begin()?;
    let boot = image.map(|image| Boot::prepare(&session, image)).transpose()?;
    session.set_sysctl("net.core.netdev_max_backlog", BACKLOG_PACKETS)?;
    for point in points.iter().filter(|point| point.incast.part != Part::Dctcp) {
        session.allow_congestion_control(point.incast.congestion_control.name())?;
    }
    if let Some(vsnoop) = &vsnoop {
        record.results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    }
    if let Some(boot) = &boot {
        record.results.environment.extend([
            ("accelerator".into(), json!(boot.accelerator)),
            ("guest_kernel".into(), json!(boot.image.kernel_version)),
        ]);
    }
    let planned = planned_rounds(options)?;
    record.results.environment.insert(ROUNDS_PLANNED.into(), json!(planned));
    let mut progress = Progress::new(planned);
    for points in points.chunk_by(|one, next| stage::same(&one.incast, &next.incast)) {
        let boot = boot.as_ref().filter(|_| points[0].incast.part.has_guests());
        println!("building a switch with its senders, for {}", points[0].incast.part.name());
        let opener = options.incast.opener.unwrap_or_default();
        let mut stage = IncastStage::build(&mut session, points, boot, opener, vsnoop.as_ref())?;
        let asked = options.incast.rate_mbit.is_some();
        let rate = calibration::rate(&mut stage, &mut record.results, &points[0].incast, asked)?;
        for point in points {
            let rate_mbit = point.incast.rate_mbit.min(rate);
            let incast = results::incast::Incast { rate_mbit, ..point.incast };
            let point = &Point { incast, ..point.clone() };
            let end = progress.done() + point.rounds * point.configurations.len();
            measure(&mut stage, &mut session, point, record, &mut progress)
                .with_context(|| point.incast.to_string())?;
            progress.skip_to(end);
        }
    }
    Ok(())
}

fn measure(
    stage: &mut IncastStage,
    session: &mut Session,
    point: &Point,
    record: &mut Record,
    progress: &mut Progress,
) -> Result<()> {
    stage.prepare(point)?;
    let started = Instant::now();
    let mut left = point.rounds;
    while left > 0 {
        // Flows without an end are new ones every time.
        let long = point.incast.part == Part::Long;
        let rounds = left.min(if long { 1 } else { BLOCK_ROUNDS });
        if started.elapsed() > BUDGET {
            eprintln!("{}: the time is up, {left} rounds were not measured", point.incast);
            break;
        }
        let mut order = point.configurations.clone();
        fastrand::shuffle(&mut order);
        for configuration in order {
            interrupt::check()?;
            let name = configuration.name();
            let block = point.rounds - left;
            if record.has(&name, point.size_bytes, &point.cell(), block) {
                progress.skip(rounds);
                continue;
            }
            let begin_ms = record.elapsed_ms();
            let samples =
                stage.block(session, point, configuration, rounds).with_context(|| name.clone())?;
            for sample in samples {
                let at_ms = begin_ms + sample.at_ms;
                record.push(Sample { turn: Some(block), at_ms, ..sample })?;
                progress.step(format!("{}, {name}", point.incast));
            }
        }
        left -= rounds;
    }
    Ok(())
}
