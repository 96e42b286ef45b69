//! The runner `link`: comparisons of carriers, the programs that carry a guest's frames to another
//! host.
//!
//! All carriers of an experiment ([`peers::link`](crate::peers::link)) run at the same time on two
//! hosts ([`rig`]), and are measured in turn. A measurement is one TCP stream with cubic at both
//! ends ([`stream`]), with echoes before and beside it ([`probe`]); [`content`] makes the data.
//! Carriers, paths, streams and rounds are declared in experiments/link-*.toml.

pub mod content;
mod probe;
mod rig;
mod stream;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use vsnoop_testbed::relay::{Bottleneck, Faults};
use vsnoop_testbed::workspace;

use super::declared::{Task, distinct};
use super::lab::require_root;
use super::options::{Options, chosen};
use super::progress::Progress;
use crate::peers::link;
use crate::results::link::{Content, LinkCell};
use crate::results::record::Record;
use crate::results::{Cell, Sample};
use rig::{Measurement, Rig, interleave};
use stream::{Load, Until};

/// The length of data that a stream repeats for a time.
const REPEATED_BYTES: u64 = 1_000_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    /// A veth without it.
    path: Option<RatedPath>,
    /// Before each stream.
    #[serde(default)]
    echoes: usize,
    /// Also beside it.
    #[serde(default)]
    loaded_echoes: bool,
    /// The receiver compares every byte.
    #[serde(default)]
    verify: bool,
    /// Ratios of zstd for each content stand in the environment.
    #[serde(default)]
    zstd_ratios: bool,
    /// Phases follow each other.
    #[serde(rename = "phase")]
    phases: Vec<Phase>,
    /// Rounds and longest streams of a quick run.
    quick: Quick,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    rounds: usize,
    stream_ms: Option<u64>,
    bytes: Option<u64>,
}

/// A path with a rate, a delay and a queue.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RatedPath {
    rate_mbit: u64,
    one_way_ms: f64,
    queue_bytes: u64,
}

/// Series whose measurements take turns.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phase {
    #[serde(default)]
    loss_percent: f64,
    /// Not in a quick run.
    #[serde(default)]
    is_long: bool,
    series: Vec<Series>,
}

/// Each content over each carrier.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    carriers: Vec<String>,
    rounds: usize,
    #[serde(default = "digits")]
    contents: Vec<Content>,
    #[serde(default = "yes")]
    offloads: bool,
    /// How long a stream takes, or how many bytes it has.
    stream_ms: Option<u64>,
    bytes: Option<u64>,
}

fn digits() -> Vec<Content> {
    vec![Content::Digits]
}

fn yes() -> bool {
    true
}

impl RatedPath {
    /// The faults of each way.
    fn faults(&self, loss_percent: f64) -> Faults {
        Faults {
            loss: loss_percent / 100.0,
            delay: Duration::from_secs_f64(self.one_way_ms / 1e3),
            bottleneck: Some(Bottleneck::new(self.rate_mbit, self.queue_bytes)),
            ..Faults::default()
        }
    }
}

impl Series {
    fn until(&self, quick: &Quick, options: &Options) -> Until {
        let shorter = |own: Option<u64>, quick: Option<u64>| match options.quick {
            true => own.and(quick).or(own),
            false => own,
        };
        match shorter(self.bytes, quick.bytes) {
            Some(bytes) => Until::Bytes(bytes),
            None => {
                let ms = shorter(self.stream_ms, quick.stream_ms).unwrap_or_default();
                Until::Time(Duration::from_millis(ms))
            }
        }
    }
}

/// The data of each content and length.
type Data = BTreeMap<(Content, u64), Vec<u8>>;

impl Plan {
    /// In the order of the file.
    fn carriers(&self) -> Vec<&'static str> {
        let all = self.phases.iter().flat_map(|phase| &phase.series).flat_map(|one| &one.carriers);
        distinct(all.filter_map(|name| link::find(name)).map(|one| &*one.name))
    }

    /// The content that stands for another, and how much of it is made.
    fn source(&self, content: Content, until: Until) -> (Content, u64) {
        let source = match content {
            Content::TextAgain => Content::Text,
            Content::Iperf10s | Content::Iperf30s | Content::Iperf200mb => Content::Digits,
            other => other,
        };
        let bytes = match until {
            Until::Bytes(bytes) => bytes,
            _ if self.verify => REPEATED_BYTES,
            _ => 10,
        };
        (source, bytes)
    }

    fn cell(&self, content: Content, offloads: bool, path_loss_percent: f64) -> Cell {
        let rate_mbit = self.path.map(|path| path.rate_mbit);
        let path_rtt_ms = self.path.map_or(0.0, |path| 2.0 * path.one_way_ms);
        let link = Some(LinkCell { rate_mbit, offloads, content });
        Cell { path_rtt_ms, path_loss_percent, link, ..Cell::default() }
    }

    /// The measurements of a phase, with their rounds.
    fn measurements<'d>(
        &self,
        phase: &Phase,
        rig: &Rig,
        options: &Options,
        data: &'d Data,
    ) -> Vec<((&'static str, Measurement<'d>), usize)> {
        let mut all = Vec::new();
        for series in &phase.series {
            let usual = if options.quick { self.quick.rounds } else { series.rounds };
            let rounds = options.rounds.unwrap_or(usual);
            let until = series.until(&self.quick, options);
            let runs = |name: &&String| rig.link(name).is_some();
            let carriers = series.carriers.iter().filter(runs).filter_map(|name| link::find(name));
            for (carrier, &content) in
                carriers.flat_map(|one| series.contents.iter().map(move |content| (one, content)))
            {
                let measurement = Measurement {
                    cell: self.cell(content, series.offloads, phase.loss_percent),
                    load: Load {
                        data: &data[&self.source(content, until)],
                        until,
                        verify: self.verify,
                    },
                    idle_echoes: if series.offloads { self.echoes } else { 0 },
                    loaded_echoes: self.loaded_echoes,
                };
                all.push(((&*carrier.name, measurement), rounds));
            }
        }
        all
    }
}

pub fn run(task: Task) -> Result<()> {
    let Task { experiment, options, record } = task;
    require_root()?;
    let mut plan: Plan = experiment.own_plan()?;
    plan.phases.retain(|phase| !(options.quick && phase.is_long));
    if let Ok(program) = workspace::vsnoop_command() {
        let version = vsnoop_testbed::net::checked(program, ["--version"]);
        record.results.environment.insert("vsnoop".into(), json!(version?.trim()));
    }
    let carriers = chosen(&plan.carriers(), &options.configurations)?;
    let faults = plan.path.map(|path| path.faults(0.0));
    let rig = Rig::build(faults.as_ref(), &carriers)?;
    rig.describe(&mut record.results);
    let data = make_data(&plan, options, record)?;
    let phases = plan.phases.iter().map(|phase| plan.measurements(phase, &rig, options, &data));
    let phases: Vec<_> = phases.collect();
    let rounds = phases.iter().flatten().map(|(_, rounds)| rounds).sum();
    let mut progress = Progress::new(rounds);
    for (phase, measurements) in plan.phases.iter().zip(&phases) {
        if let Some(path) = plan.path {
            rig.hosts().set_faults(&path.faults(phase.loss_percent));
        }
        interleave(measurements, |(name, measurement), round| {
            let link = rig.link(name).context("a carrier has ended")?;
            if record.has(name, measurement.load.bytes(), &measurement.cell, round) {
                progress.skip(1);
                return Ok(());
            }
            let at_ms = record.elapsed_ms();
            let sample = rig.measure(link, measurement)?;
            record.push(Sample { turn: Some(round), at_ms, ..sample })?;
            progress.step(format!("{name}, {}", measurement.cell));
            Ok(())
        })?;
    }
    Ok(())
}

fn make_data(plan: &Plan, options: &Options, record: &mut Record) -> Result<Data> {
    let (mut data, mut ratios) = (Data::new(), BTreeMap::new());
    for series in plan.phases.iter().flat_map(|phase| &phase.series) {
        let until = series.until(&plan.quick, options);
        for &content in &series.contents {
            let (source, bytes) = plan.source(content, until);
            if let std::collections::btree_map::Entry::Vacant(place) = data.entry((source, bytes)) {
                let made = place.insert(content::make(source, bytes as usize)?);
                if plan.zstd_ratios && source == content {
                    ratios.insert(content.name(), content::zstd_ratios(made)?);
                }
            }
        }
    }
    if plan.zstd_ratios {
        record.results.environment.insert("zstd_ratios_levels_1_and_3".into(), json!(ratios));
    }
    Ok(data)
}
