//! CDFs of throughput, in the form of Fig. 5 of the vSnoop paper: throughput in MB/s on a
//! logarithmic axis, one line for each configuration; as SVG and PNG.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::cdf::steps;
use super::drawing::{Axis, Drawing, Line, draw_lines, finished, framed, mark};
use super::statistics::{self, ACKED, DELIVERED, Metric, ascending};
use super::{Results, size_name, size_text};

/// Meaning of `throughput` at one end of the connection.
struct View {
    file: &'static str,
    title: &'static str,
    metric: Metric,
}

const VIEWS: [View; 2] = [
    View { file: "acked", title: "as the sender sees it (acknowledged)", metric: ACKED },
    View { file: "delivered", title: "until the receiver's answer (delivered)", metric: DELIVERED },
];

/// Contents of one line of a plot.
struct Throughputs {
    name: String,
    /// Ascending.
    throughput_mb_per_s: Vec<f64>,
}

/// Draws all plots of `results` into `dir` and returns their names without extension. With several
/// cells, each name ends with its cell.
pub fn draw_all(results: &Results, dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let several = results.cells().len() > 1;
    for view in &VIEWS {
        for group in results.groups() {
            let mut name = format!("cdf-{}-{}", size_name(group.size_bytes), view.file);
            let mut title = format!(
                "TCP throughput of {} transfers, {}",
                size_text(group.size_bytes),
                view.title
            );
            if several {
                name += &format!("-{}", group.cell.suffix().replace('_', "-"));
                title = format!("{}, {}; {}", size_text(group.size_bytes), view.title, group.cell);
            }
            let lines: Vec<_> = results
                .configurations()
                .into_iter()
                .map(|configuration| {
                    let times = statistics::values(results, &configuration, &group, &view.metric);
                    // Bytes per millisecond are kilobytes per second.
                    let throughput = times.iter().map(|ms| group.size_bytes as f64 / ms / 1000.0);
                    Throughputs { throughput_mb_per_s: ascending(throughput), name: configuration }
                })
                .filter(|line| !line.throughput_mb_per_s.is_empty())
                .collect();
            if lines.is_empty() {
                continue;
            }
            Distribution { title, lines }.draw(dir, &name)?;
            names.push(name);
        }
    }
    Ok(names)
}

/// The distribution of one view and group.
struct Distribution {
    title: String,
    lines: Vec<Throughputs>,
}

impl Drawing for Distribution {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        finished(area, || {
            let chart = framed(area, &self.title, 72)
                .build_cartesian_2d(range(&self.lines).log_scale(), 0.0..1.0)?;
            let axes = [
                Axis { label: "throughput [MB/s], logarithmic", labels: 8, format: &mark },
                Axis {
                    label: "cumulative fraction of transfers",
                    labels: 11,
                    format: &|value| format!("{value:.1}"),
                },
            ];
            let lines =
                self.lines.iter().map(|Throughputs { name, throughput_mb_per_s: values }| {
                    let name = format!("{name} (n = {})", values.len());
                    Line { name, points: steps(values) }
                });
            draw_lines(chart, axes, lines, &[], 0, SeriesLabelPosition::UpperLeft)
        })
    }
}

/// The range from the decade of the smallest to that of the largest value.
fn range(lines: &[Throughputs]) -> Range<f64> {
    let values = || lines.iter().flat_map(|line| line.throughput_mb_per_s.iter().copied());
    let low = values().fold(f64::INFINITY, f64::min).log10().floor();
    let high = values().fold(0.0, f64::max).log10().ceil();
    if low.is_finite() && high > low { 10f64.powf(low)..10f64.powf(high) } else { 0.1..100.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_covers_all_values() {
        let values = vec![0.2, 3.0, 3.0, 40.0];
        let range = range(&[Throughputs { name: String::new(), throughput_mb_per_s: values }]);
        assert_eq!(range, 0.1..100.0);
    }
}
