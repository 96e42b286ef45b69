//! Plots: what clients had acknowledged around the switch, and the stalls.

use std::path::Path;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::configuration::Configuration;
use super::summary::of;
use crate::results::Results;
use crate::results::bars::{Bar, Bars, Group};
use crate::results::drawing::{Axis, COLOURS, Drawing, Line, draw_lines, finished, framed, mark};
use crate::results::migration::Migrated;
use crate::results::statistics::{ascending, percentile};

const PROGRESS: &str = "progress";
const STALLS: &str = "stalls";
const DOWNTIME_AND_STALL: &[Group] = &[
    Group { name: "downtime of the migration", colour: COLOURS[6] },
    Group { name: "stall of the connections", colour: COLOURS[0] },
];

/// Draws into `dir`, and returns the names.
pub fn draw_all(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let names = Configuration::ordered(&results.configurations());
    let lines = names.iter().filter_map(|name| {
        let shown = typical(&of(results, name))?;
        let point = |one: &crate::results::migration::Acknowledged| {
            (one.at_ms / 1e3, one.bytes as f64 / 1e6)
        };
        Some(Line { name: (*name).to_owned(), points: shown.progress.iter().map(point).collect() })
    });
    Progress { lines: lines.collect() }.draw(dir, PROGRESS)?;
    let bars = names.iter().flat_map(|name| {
        let all = of(results, name);
        let p50 = |value: fn(&Migrated) -> f64| {
            percentile(&ascending(all.iter().map(|m| value(m))), 50.0).unwrap_or_default()
        };
        [
            Bar { name: (*name).to_owned(), value: p50(|m| m.downtime_ms), group: 0 },
            Bar { name: String::new(), value: p50(|m| m.stall_ms), group: 1 },
        ]
    });
    let bars = Bars {
        title: "Median of downtime, and of the longest stall".into(),
        unit: "ms",
        groups: DOWNTIME_AND_STALL,
        bars: bars.collect(),
    };
    bars.draw(dir, STALLS)?;
    Ok([PROGRESS, STALLS].map(String::from).to_vec())
}

/// The migration with the median stall.
fn typical<'a>(all: &[&'a Migrated]) -> Option<&'a Migrated> {
    let mut all = all.to_vec();
    all.sort_by(|a, b| a.stall_ms.total_cmp(&b.stall_ms));
    all.get(all.len() / 2).copied()
}

struct Progress {
    lines: Vec<Line>,
}

impl Drawing for Progress {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let first = points().map(|point| point.0).fold(0.0, f64::min);
        let last = points().map(|point| point.0).fold(1.0, f64::max);
        let most = points().map(|point| point.1).fold(1.0, f64::max);
        finished(area, || {
            let title = "Bytes acknowledged to all clients around a migration";
            let chart =
                framed(area, title, 84).build_cartesian_2d(first..last, 0.0..most * 1.05)?;
            let axes = [
                Axis {
                    label: "time since the guest stopped at the source [s]",
                    labels: 12,
                    format: &mark,
                },
                Axis { label: "MB", labels: 8, format: &mark },
            ];
            let lines = self.lines.iter().cloned();
            draw_lines(chart, axes, lines, &[], 0, SeriesLabelPosition::UpperLeft)
        })
    }
}
