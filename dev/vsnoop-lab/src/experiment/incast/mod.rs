//! `incast`: many senders answer one machine at once, through a last hop with a shallow buffer.
//!
//! The experiments of the ICTCP paper (Wu, Feng, Guo, Zhang: ICTCP, CoNEXT 2010). In a round the
//! machine requests data from all senders at the same time; the round ends when all data have
//! arrived. If the buffer of the last hop overflows, whole windows are lost, and the round lasts
//! until the last retransmission timeout. [`plan`] has the rounds, [`stage`] measures them,
//! [`connections`] opens the connections.

mod calibration;
mod configuration;
mod connections;
mod plan;
mod stage;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vsnoop::Vsnoop;

use super::declared::Task;
use super::lab::require_root;
use super::progress::Progress;
use crate::results::incast::Part;
use crate::results::record::Record;
use crate::results::{self, ROUNDS_PLANNED, Sample};
use plan::{Declared, Point};
use stage::IncastStage;

/// Counted rounds of a block; the next block has the next configuration.
const BLOCK_ROUNDS: usize = 10;
/// Longest time of a point's measurements, even if rounds remain.
const BUDGET: Duration = Duration::from_secs(30);
/// net.core.netdev_max_backlog, packets: many senders send more at once than the default of 1000,
/// and packets may be lost at the last hop only.
const BACKLOG_PACKETS: &str = "20000";

pub fn run(task: Task) -> Result<()> {
    let Task { experiment, options, record } = task;
    require_root()?;
    let points = experiment.own_plan::<Declared>()?.points(options)?;
    let attaches = points
        .iter()
        .any(|point| point.configurations.iter().any(|configuration| configuration.attaches()));
    let vsnoop = if attaches { Some(Vsnoop::find()?) } else { None };
    let mut session = Session::begin()?;
    session.set_sysctl("net.core.netdev_max_backlog", BACKLOG_PACKETS)?;
    for point in &points {
        session.allow_congestion_control(point.incast.congestion_control.name())?;
    }
    if let Some(vsnoop) = &vsnoop {
        record.results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    }
    let planned = points.iter().map(|point| point.rounds * point.configurations.len()).sum();
    record.results.environment.insert(ROUNDS_PLANNED.into(), json!(planned));
    let mut progress = Progress::new(planned);
    println!("building a switch with its senders");
    let senders = points.iter().map(|point| point.incast.senders).max().unwrap_or(1);
    let mut stage = IncastStage::build(senders, vsnoop.as_ref())?;
    let asked = options.incast.rate_mbit.is_some();
    let rate = calibration::rate(&mut stage, &mut record.results, &points[0].incast, asked)?;
    for point in &points {
        let rate_mbit = point.incast.rate_mbit.min(rate);
        let incast = results::incast::Incast { rate_mbit, ..point.incast };
        let point = &Point { incast, ..point.clone() };
        let end = progress.done() + point.rounds * point.configurations.len();
        measure(&mut stage, &mut session, point, record, &mut progress)
            .with_context(|| point.incast.to_string())?;
        progress.skip_to(end);
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
