//! The runner `ping`: round trips of ICMP echoes from the client to VMs that share a core.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::vm_address;
use vsnoop_testbed::vm::Begin;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::rounds::Trial;
use crate::results::cdf::{Cdf, Curve};
use crate::results::chart::Chart;
use crate::results::drawing::{Drawing, Line};
use crate::results::statistics::{named, percentile};
use crate::results::table::{NOT_MEASURED, Style, grid, milliseconds, or_dash};
use crate::results::{Cell, Figure, Group, Label, Results, Sample, alone};

pub const RUNNER: Runner =
    Runner { name: "ping", run, tables, figures, goals: None, plots, difference };

/// After an answer.
const GAP_MS: Range<u64> = 20..170;
const RTT: &str = "rtt_ms";
/// A sample of this kind is a turn of a VM, with the time that it has waited for it.
const TURN: &str = "turn";
const WAIT: &str = "wait_ms";
/// What the paper's scheduler gives a VM at a time.
const SLICE_MS: f64 = 30.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Pings of a round.
    pings: u16,
}

fn run(task: Task) -> Result<()> {
    let Settings { pings } = task.plan.settings()?;
    on_stages(task, guest::Options::default(), &mut Pings { pings })
}

struct Pings {
    pings: u16,
}

impl Measure for Pings {
    fn measure(&mut self, ground: &Ground, _: Trial<Configuration>) -> Result<Vec<Sample>> {
        let to = vm_address(ground.machine, false);
        let times = ground.stage.client().ping_with_gaps(to, self.pings, GAP_MS)?;
        let sample =
            |rtt_ms: f64| Sample { values: [(RTT.into(), rtt_ms)].into(), ..Sample::default() };
        Ok(times.into_iter().map(|time| sample(time.as_secs_f64() * 1e3)).collect())
    }

    fn turns(&mut self, begun: &[Begin]) -> Vec<Sample> {
        let what = Label::from(TURN).ok();
        let sample = |begin: &Begin| Sample {
            what,
            values: [(WAIT.into(), begin.waited.as_secs_f64() * 1e3)].into(),
            ..Sample::default()
        };
        begun.iter().map(sample).collect()
    }
}

/// The round trips of one configuration in one cell.
struct Pinged {
    configuration: String,
    cell: Cell,
    /// Ascending.
    times_ms: Vec<f64>,
}

impl Pinged {
    fn all(results: &Results) -> Vec<Self> {
        let of = |group: &Group, configuration: String| Self {
            times_ms: named(results, &configuration, group, RTT),
            cell: group.cell,
            configuration,
        };
        let groups = results.groups();
        let configurations = results.configurations();
        let pairs = groups
            .iter()
            .flat_map(|group| configurations.iter().map(move |name| of(group, name.clone())));
        pairs.filter(|pinged| !pinged.times_ms.is_empty()).collect()
    }

    fn mean(&self) -> f64 {
        self.times_ms.iter().sum::<f64>() / self.times_ms.len() as f64
    }
}

fn tables(results: &Results, style: Style) -> String {
    let header = ["cell", "configuration", "n", "mean\nms", "p50\nms", "p90\nms", "p99\nms"];
    let row = |pinged: Pinged| {
        let at = |percent| or_dash(milliseconds)(percentile(&pinged.times_ms, percent));
        let (n, mean) = (pinged.times_ms.len().to_string(), milliseconds(pinged.mean()));
        let [p50, p90, p99] = [50.0, 90.0, 99.0].map(at);
        vec![pinged.cell.to_string(), pinged.configuration, n, mean, p50, p90, p99]
    };
    let pings = grid(style, &header, 2, Pinged::all(results).into_iter().map(row).collect());
    match turns_table(results, style) {
        Some(turns) => format!("{pings}\n\n{turns}"),
        None => pings,
    }
}

/// How well the slices do: what a VM alone uses of its core, and the time until one with work gets
/// its next turn.
fn turns_table(results: &Results, style: Style) -> Option<String> {
    let groups = results.groups();
    let row = |group: &Group| {
        let waits_ms = named(results, "off", group, WAIT);
        let at = |percent| or_dash(milliseconds)(percentile(&waits_ms, percent));
        let alone = results.environment.get(&alone::name(group.cell.vms));
        let alone = alone.and_then(Value::as_f64).map_or(NOT_MEASURED.into(), |percent| {
            format!("{percent:.0} [{:.0}]", alone::LOAD_PERCENT)
        });
        let n = waits_ms.len().to_string();
        let [p10, p50, p90] = [10.0, 50.0, 90.0].map(at);
        vec![group.cell.vms.to_string(), alone, n, p10, p50, p90]
    };
    let rows: Vec<_> = groups.iter().filter(|group| is_of_turns(group)).map(row).collect();
    let header =
        ["VMs", "a VM alone uses\n% [its load]", "turns", "until the next\nms p10", "p50", "p90"];
    (!rows.is_empty()).then(|| grid(style, &header, 0, rows))
}

fn figures(results: &Results) -> Vec<Figure> {
    let figure = |pinged: Pinged| Figure {
        name: format!("ping_mean_ms_{}_{}", pinged.configuration, pinged.cell.suffix()),
        value: pinged.mean(),
        unit: "ms".into(),
        better: "lower".into(),
    };
    Pinged::all(results).into_iter().map(figure).collect()
}

fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let all = Pinged::all(results);
    let curve = |pinged: &Pinged| {
        let vms =
            if pinged.cell.vms == 1 { "1 VM".into() } else { format!("{} VMs", pinged.cell.vms) };
        Curve { name: format!("{vms}, {}", pinged.configuration), values: pinged.times_ms.clone() }
    };
    let title = "Round trips of pings to VMs that share a core".to_owned();
    let curves = all.iter().map(curve).collect();
    Cdf { title: title.clone(), x_label: "round trip [ms]", curves }.draw(dir, "cdf")?;
    let mut names = vec!["mean".to_owned(), "cdf".to_owned()];
    names.extend(plot_turns(results, dir)?);
    let mut lines: Vec<Line> = Vec::new();
    for pinged in &all {
        let cell = Cell { vms: 0, ..pinged.cell };
        let name = format!("{}, load {}, {}", pinged.configuration, cell.load, path(&cell));
        let point = (pinged.cell.vms as f64, pinged.mean());
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let most = all.iter().map(Pinged::mean).fold(1.0, f64::max);
    let x_label = "VMs on the core";
    let y_label = "mean round trip [ms]";
    Chart { title, x_label, y_label, y_max: most * 1.1, lines, paper: Vec::new() }
        .draw(dir, "mean")?;
    Ok(names)
}

/// The time until a VM that has work gets its next turn.
fn plot_turns(results: &Results, dir: &Path) -> Result<Option<String>> {
    let curve = |group: &Group| Curve {
        name: format!("{} VMs", group.cell.vms),
        values: named(results, "off", group, WAIT),
    };
    let groups = results.groups();
    let curves: Vec<_> = groups.iter().filter(|group| is_of_turns(group)).map(curve).collect();
    if curves.is_empty() {
        return Ok(None);
    }
    let title = "Time until a VM that has work gets its next turn".to_owned();
    Cdf { title, x_label: "time [ms]", curves }.draw(dir, "turns")?;
    Ok(Some("turns".into()))
}

fn is_of_turns(group: &Group) -> bool {
    group.what.is_some_and(|what| what.as_str() == TURN)
}

fn path(cell: &Cell) -> String {
    let share = cell.share.map_or(String::new(), |share| share.text());
    format!("{share}, {} ms", cell.path_rtt_ms)
}

/// How much each further VM adds, against the paper's slice.
fn difference(results: &Results) -> Option<String> {
    let all = Pinged::all(results);
    let (fewest, most) =
        (all.iter().min_by_key(|one| one.cell.vms)?, all.iter().max_by_key(|one| one.cell.vms)?);
    let further = most.cell.vms.checked_sub(fewest.cell.vms).filter(|vms| *vms > 0)?;
    let each = (most.mean() - fewest.mean()) / further as f64;
    Some(format!(
        "from {} to {} VMs the mean grows from {} to {} ms, {} ms for each further VM ({:.0} % of a \
         slice of {SLICE_MS} ms){}.",
        fewest.cell.vms,
        most.cell.vms,
        milliseconds(fewest.mean()),
        milliseconds(most.mean()),
        milliseconds(each),
        each / SLICE_MS * 100.0,
        turns(results, &most.cell).unwrap_or_default(),
    ))
}

/// How long the VMs of a cell waited for their turns, and what a ping has to do with it.
fn turns(results: &Results, cell: &Cell) -> Option<String> {
    let groups = results.groups();
    let group = groups.iter().find(|group| is_of_turns(group) && group.cell == *cell)?;
    let waits = named(results, "off", group, WAIT);
    let others = cell.vms.saturating_sub(1) as f64;
    // In a circle of busy VMs a packet comes in the turn of its VM, or waits up to all others.
    let mean = others * others * SLICE_MS / (2.0 * cell.vms as f64);
    Some(format!(
        "; of {} VMs one with work waited {} ms for its turn (median; all others together have {}), \
         and a ping at any moment, which may find it in its turn, would wait {} ms on average if all \
         of them were always busy",
        cell.vms,
        milliseconds(percentile(&waits, 50.0)?),
        others * SLICE_MS,
        milliseconds(mean),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::results;

    #[test]
    fn the_growth_of_the_mean_stands_beside_the_measured_waits_for_turns() {
        let sample = |vms: usize, what: Option<&str>, name: &str, ms: f64| Sample {
            configuration: "off".into(),
            cell: Cell { vms, load: 0.6, ..Cell::default() },
            what: what.and_then(|what| Label::from(what).ok()),
            values: [(name.to_owned(), ms)].into(),
            ..Sample::default()
        };
        let mut samples = vec![sample(1, None, RTT, 1.0), sample(3, None, RTT, 19.0)];
        let text = difference(&results(samples.clone())).unwrap();
        assert!(text.contains("9.0 ms for each further VM (30 % of a slice of 30 ms)."), "{text}");
        samples.push(sample(3, Some(TURN), WAIT, 58.0));
        let mut results = results(samples);
        let text = difference(&results).unwrap();
        results.environment.insert(alone::name(3), 64.8.into());
        let table = tables(&results, Style::Markdown);
        assert!(table.contains("65 [60]") && table.contains("58.0"), "{table}");
        assert!(text.contains("of 3 VMs one with work waited 58.0 ms"), "{text}");
        assert!(text.contains("together have 60)") && text.contains("wait 20.0 ms"), "{text}");
    }
}
