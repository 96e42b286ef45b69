//! `link-wan`: hosts on a link of 100 Mb/s with 10 ms each way, without loss and with 1 %.

use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::rated_path::RatedPath;
use super::rig::Task;
use super::series::{QuickStreams, Series, progress_of, rounds};
use super::stream::Load;
use super::values::{self, deviation, figure, mean};
use super::{content, differences, plots, tables};
use crate::experiment::declared::{Own, OwnRunner};
use crate::experiment::definition::{Experiment, Options, chosen};
use crate::results::link::Content;
use crate::results::record::Record;
use crate::results::statistics::percentile;
use crate::results::{Figure, Results};

/// Of experiments/link-wan.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    path: RatedPath,
    /// Before each stream.
    echoes: usize,
    without_loss: Part,
    with_loss: Part,
    carriers: Vec<Rounds>,
    quick: QuickStreams,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    loss_percent: f64,
    stream_ms: u64,
}

/// Of a carrier.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rounds {
    name: String,
    without_loss: usize,
    with_loss: usize,
}

static DECLARED: LazyLock<Own<Plan>> =
    LazyLock::new(|| Own::read(include_str!("../../../experiments/link-wan.toml")));

static RUNNER: OwnRunner = OwnRunner {
    name: "link-wan",
    run,
    tables: tables::paths,
    figures,
    goals: None,
    plots: plots::vnet,
    difference: differences::wan,
};

pub fn experiment() -> Experiment {
    DECLARED.experiment(&RUNNER)
}

fn run(options: &Options, record: &mut Record) -> Result<()> {
    let Own { plan, .. } = &*DECLARED;
    let all: Vec<_> = plan.carriers.iter().map(|carrier| carrier.name.as_str()).collect();
    let carriers = chosen(&all, &options.configurations)?;
    let mut series = Series::begin(record, options, Some(&plan.path.faults(0.0)), &carriers)?;
    let measurements = |of: fn(&Rounds) -> usize| -> Vec<(&'static str, usize)> {
        let wanted = plan.carriers.iter().filter(|one| series.rig.link(&one.name).is_some());
        let rounds = |one| rounds(options, of(one), plan.quick.rounds);
        wanted.map(|one| (one.name.as_str(), rounds(one))).collect()
    };
    let (without, with) = (measurements(|one| one.without_loss), measurements(|one| one.with_loss));
    let mut progress = progress_of(&[&without, &with]);
    let data = content::make(Content::Digits, 1_000_000)?;
    for (measurements, part) in [(without, &plan.without_loss), (with, &plan.with_loss)] {
        series.rig.hosts().set_faults(&plan.path.faults(part.loss_percent));
        let until = plan.quick.until(options, part.stream_ms);
        series.interleave(&mut progress, &measurements, |name| {
            let task = Task {
                cell: plan.path.cell(Content::Digits, part.loss_percent),
                load: Load { data: &data, until, verify: true },
                idle_echoes: plan.echoes,
                loaded_echoes: true,
            };
            (name, task)
        })?;
    }
    Ok(())
}

/// The figures of each carrier: names begin with `wan_loss_` for measurements with loss, and with
/// `wan_` for those without.
fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for carrier in values::carriers(results) {
        let name = carrier.name.trim_start_matches("vsnoop-").replace('-', "_");
        for (path, lossy) in [("wan_loss", true), ("wan", false)] {
            let wanted = |cell: &crate::results::Cell| (cell.path_loss_percent > 0.0) == lossy;
            let Some(values) = values::of(results, carrier.name, wanted) else { continue };
            let (idle, loaded) = (values.idle_pings_ms(), values.loaded_pings_ms());
            let mbps = figure(&format!("{path}_mbps_{name}"), values.mean_mbps(), "Mb/s", "higher");
            figures.push(mbps);
            for (what, value) in [
                ("ping_ms", mean(&loaded)),
                ("ping_p50_ms", percentile(&loaded, 50.0)),
                ("ping_p95_ms", percentile(&loaded, 95.0)),
                ("ping_p99_ms", percentile(&loaded, 99.0)),
                ("idle_mdev_ms", deviation(&idle)),
            ] {
                let named = |value| figure(&format!("{path}_{what}_{name}"), value, "ms", "lower");
                figures.extend(value.map(named));
            }
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::values::testing::sample;
    use super::*;
    use crate::experiment::goals::found;
    use crate::results::testing::results;

    #[test]
    fn figures_are_of_their_path_and_their_carrier() {
        let lossy = |carrier: &str, mbps: f64, pings: Vec<f64>| {
            let mut sample = sample(carrier, mbps);
            sample.cell.path_loss_percent = 1.0;
            if let Some(carried) = &mut sample.carried {
                carried.loaded_pings_ms = pings;
            }
            sample
        };
        let mut results = results(vec![
            lossy("bare", 5.0, vec![20.0]),
            lossy("bare", 7.0, vec![22.0]),
            lossy("vsnoop-tls", 85.0, (0..=100).map(f64::from).collect()),
            sample("bare", 95.0),
        ]);
        results.figures = figures(&results);
        assert_eq!(found(&results, "wan_loss_mbps_bare"), Some(6.0), "a mean");
        assert_eq!(found(&results, "wan_loss_ping_ms_bare"), Some(21.0));
        assert_eq!(found(&results, "wan_loss_ping_p95_ms_tls"), Some(95.0));
        assert_eq!(found(&results, "wan_loss_ping_p99_ms_tls"), Some(99.0));
        assert_eq!(found(&results, "wan_mbps_bare"), Some(95.0));
        assert_eq!(found(&results, "wan_mbps_tls"), None);
    }
}
