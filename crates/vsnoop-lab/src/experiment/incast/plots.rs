//! The paper's diagrams: goodput, and rounds with a timeout, against the number of senders.

use std::path::Path;

use anyhow::Result;

use super::declaration;
use super::figures::{Outcome, outcome};
use super::paper::{PaperFigure, ViewName};
use crate::results::chart::Chart;
use crate::results::drawing::{Drawing, Line};
use crate::results::incast::{Incast, Part, RATE_MBIT};
use crate::results::{Group, Results, size_text};

const X_LABEL: &str = "senders";
const MOST_PERCENT: f64 = 105.0;

struct View {
    name: ViewName,
    file: &'static str,
    title: &'static str,
    y_label: &'static str,
    y_max: fn(&Incast) -> f64,
    value: fn(&Outcome) -> f64,
}

const VIEWS: [View; 2] = [
    View {
        name: ViewName::Goodput,
        file: "goodput",
        title: "Goodput",
        y_label: "goodput [Mb/s]",
        y_max: |setting| setting.rate_mbit as f64,
        value: |outcome| outcome.goodput_mbps,
    },
    View {
        name: ViewName::Timeouts,
        file: "timeouts",
        title: "Rounds with a timeout",
        y_label: "rounds with a timeout [%]",
        y_max: |_| MOST_PERCENT,
        value: |outcome| outcome.timeout_pct,
    },
];

/// Draws the paper's figures, and one of each view for every part and setting that has lines.
pub fn draw(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for figure in &declaration::read().figures {
        names.extend(draw_figure(results, figure, dir)?);
    }
    let mut settings: Vec<Incast> = Vec::new();
    for incast in results.cells().iter().filter_map(|cell| cell.incast) {
        if incast.part != Part::Long && !settings.iter().any(|known| same(known, &incast)) {
            settings.push(incast);
        }
    }
    for setting in settings {
        for view in &VIEWS {
            let lines =
                lines(results, &results.configurations(), view, |one, _| same(one, &setting));
            // A single point is in the tables.
            if lines.iter().all(|line| line.points.len() < 2) {
                continue;
            }
            let name = format!("{}-{}", view.file, file_name(&setting));
            let title = format!("{}, {}: {}", view.title, setting.part.name(), setting.setting());
            let y_max = (view.y_max)(&setting);
            let (x_label, y_label) = (X_LABEL, view.y_label);
            Chart { title, x_label, y_label, y_max, lines, paper: Vec::new() }.draw(dir, &name)?;
            names.push(name);
        }
    }
    Ok(names)
}

/// A figure of the paper, up to the numbers of senders that it has, with its values. Nothing is
/// drawn of a single point.
fn draw_figure(results: &Results, figure: &PaperFigure, dir: &Path) -> Result<Option<String>> {
    let Some(view) = VIEWS.iter().find(|view| view.name == figure.view) else { return Ok(None) };
    let has = |incast: &Incast, size| figure.has(incast, size);
    let mut lines = lines(results, &figure.configurations, view, has);
    // Goodput is relative to the last hop, which the paper has at another rate.
    let rate_mbit = results.cells().into_iter().filter_map(|cell| cell.incast);
    let rate_mbit = rate_mbit.filter(|one| figure.is_of(one)).map(|one| one.rate_mbit).max();
    let relative = |rate_mbit: u64| match figure.view {
        ViewName::Goodput => 100.0 / rate_mbit as f64,
        ViewName::Timeouts => 1.0,
    };
    let factor = relative(rate_mbit.unwrap_or(RATE_MBIT));
    for (_, value) in lines.iter_mut().flat_map(|line| &mut line.points) {
        *value *= factor;
    }
    let senders: Vec<f64> =
        lines.iter().flat_map(|line| &line.points).map(|(senders, _)| *senders).collect();
    let most = senders.iter().copied().fold(0.0, f64::max);
    if senders.iter().all(|one| *one == most) {
        return Ok(None);
    }
    let paper = figure.paper.values.iter().map(|one| {
        let value = one.value * relative(RATE_MBIT);
        Line {
            name: format!("paper: {}", one.name),
            points: match one.x {
                Some(x) => vec![(x, value)],
                None => vec![(0.0, value), (most, value)],
            },
        }
    });
    let y_label = match figure.view {
        ViewName::Goodput => "goodput [% of the last hop]",
        ViewName::Timeouts => view.y_label,
    };
    let chart = Chart {
        title: figure.paper.figure.to_string(),
        x_label: X_LABEL,
        y_label,
        y_max: MOST_PERCENT,
        lines,
        paper: paper.collect(),
    };
    chart.draw(dir, &figure.plot)?;
    Ok(Some(figure.plot.clone()))
}

/// Whether these groups differ only in the number of senders.
fn same(one: &Incast, other: &Incast) -> bool {
    *one == Incast { senders: one.senders, ..*other }
}

fn file_name(setting: &Incast) -> String {
    let mut name = format!(
        "{}-{}kb-{}-rto{}",
        setting.part.name(),
        setting.buffer_bytes / 1000,
        setting.congestion_control.name(),
        setting.rto_min_ms
    );
    if let Some(total) = setting.total_bytes {
        name += &format!("-{}kb-in-all", total / 1000);
    }
    name
}

/// A line for each configuration and size, or total, of the groups that are wanted.
fn lines(
    results: &Results,
    configurations: &[String],
    view: &View,
    wanted: impl Fn(&Incast, u64) -> bool,
) -> Vec<Line> {
    let mut groups: Vec<_> = results
        .groups()
        .into_iter()
        .filter_map(|group| Some((group.cell.incast?, group)))
        .filter(|(incast, group)| wanted(incast, group.size_bytes))
        .collect();
    groups.sort_by_key(|(incast, _)| incast.senders);
    let size = |(incast, group): &(Incast, Group)| match incast.total_bytes {
        Some(total) => format!("{} in all", size_text(total)),
        None => format!("{} each", size_text(group.size_bytes)),
    };
    let mut by_size = groups.clone();
    by_size.sort_by_key(|(incast, group)| incast.total_bytes.unwrap_or(group.size_bytes));
    let mut sizes: Vec<_> = by_size.iter().map(size).collect();
    sizes.dedup();
    let mut lines = Vec::new();
    for configuration in configurations {
        for wanted in &sizes {
            let of_size = groups.iter().filter(|one| size(one) == *wanted);
            let points: Vec<_> = of_size
                .filter_map(|(incast, group)| {
                    let outcome = outcome(results.of(configuration, group))?;
                    Some((incast.senders as f64, (view.value)(&outcome)))
                })
                .collect();
            if !points.is_empty() {
                lines.push(Line { name: format!("{configuration}, {wanted}"), points });
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::figures::testing::round;
    use super::*;
    use crate::results::testing::results;

    #[test]
    fn a_line_has_a_point_for_every_number_of_senders_in_ascending_order() {
        let samples = vec![
            round("off", 40, 50.0, 1),
            round("off", 4, 900.0, 0),
            round("incast", 4, 910.0, 0),
        ];
        let setting = samples[0].cell.incast.unwrap();
        let results = results(samples);
        let lines =
            lines(&results, &results.configurations(), &VIEWS[1], |one, _| same(one, &setting));
        assert_eq!(lines[0].points, [(4.0, 0.0), (40.0, 100.0)]);
        assert_eq!(lines[0].name, "off, 64 KB each");
        assert_eq!(lines[1].points, [(4.0, 0.0)]);
    }
}
