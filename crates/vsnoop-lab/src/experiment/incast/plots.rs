//! The paper's diagrams: goodput, and rounds with a timeout, against the number of senders.

use std::path::Path;

use anyhow::Result;

use super::figures::{Outcome, outcome};
use crate::results::chart::Chart;
use crate::results::drawing::{Drawing, Line};
use crate::results::incast::{Incast, Part};
use crate::results::{Results, size_text};

struct View {
    file: &'static str,
    title: &'static str,
    y_label: &'static str,
    y_max: fn(&Incast) -> f64,
    value: fn(&Outcome) -> f64,
}

const VIEWS: [View; 2] = [
    View {
        file: "goodput",
        title: "Goodput",
        y_label: "goodput [Mb/s]",
        y_max: |setting| setting.rate_mbit as f64,
        value: |outcome| outcome.goodput_mbps,
    },
    View {
        file: "timeouts",
        title: "Rounds with a timeout",
        y_label: "rounds with a timeout [%]",
        y_max: |_| 105.0,
        value: |outcome| outcome.timeout_pct,
    },
];

/// Draws one of each for every part and setting that has lines.
pub fn draw(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut settings: Vec<Incast> = Vec::new();
    for incast in results.cells().iter().filter_map(|cell| cell.incast) {
        if incast.part != Part::Long && !settings.iter().any(|known| same(known, &incast)) {
            settings.push(incast);
        }
    }
    for setting in settings {
        for view in &VIEWS {
            let lines = lines(results, &setting, view);
            // A single point is in the tables.
            if lines.iter().all(|line| line.points.len() < 2) {
                continue;
            }
            let name = format!("{}-{}", view.file, file_name(&setting));
            let title = format!("{}, {}: {}", view.title, setting.part.name(), setting.setting());
            let y_max = (view.y_max)(&setting);
            let chart = Chart { title, x_label: "senders", y_label: view.y_label, y_max, lines };
            chart.draw(dir, &name)?;
            names.push(name);
        }
    }
    Ok(names)
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

/// A line for each configuration and, unless the total is fixed, size.
fn lines(results: &Results, setting: &Incast, view: &View) -> Vec<Line> {
    let mut groups: Vec<_> = results
        .groups()
        .into_iter()
        .filter_map(|group| Some((group.cell.incast?, group)))
        .filter(|(incast, _)| same(incast, setting))
        .collect();
    groups.sort_by_key(|(incast, group)| (incast.senders, group.size_bytes));
    let mut sizes: Vec<_> = groups.iter().map(|(_, group)| group.size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let sizes: Vec<_> = match setting.total_bytes {
        Some(_) => vec![None],
        None => sizes.into_iter().map(Some).collect(),
    };
    let mut lines = Vec::new();
    for configuration in results.configurations() {
        for &size in &sizes {
            let of_size = groups.iter().filter(|(_, g)| size.is_none_or(|s| s == g.size_bytes));
            let points: Vec<_> = of_size
                .filter_map(|(incast, group)| {
                    let outcome = outcome(results.of(&configuration, group))?;
                    Some((incast.senders as f64, (view.value)(&outcome)))
                })
                .collect();
            let name = match size {
                Some(size) => format!("{configuration}, {} each", size_text(size)),
                None => configuration.clone(),
            };
            if !points.is_empty() {
                lines.push(Line { name, points });
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
        let lines = lines(&results, &setting, &VIEWS[1]);
        assert_eq!(lines[0].points, [(4.0, 0.0), (40.0, 100.0)]);
        assert_eq!(lines[0].name, "off, 64 KB each");
        assert_eq!(lines[1].points, [(4.0, 0.0)]);
    }
}
