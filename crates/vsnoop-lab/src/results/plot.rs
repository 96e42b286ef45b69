//! CDFs of throughput, in the form of Fig. 5 of the vSnoop paper: throughput in MB/s on a
//! logarithmic axis, one line for each configuration; as SVG and PNG.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::drawing::{Drawing, FONT, draw_legend};
use super::statistics::{self, ACKED, DELIVERED, Metric, ascending};
use super::{Results, size_name, size_text};

pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0x1b, 0x9e, 0x77),
    RGBColor(0x75, 0x70, 0xb3),
    RGBColor(0xe7, 0x29, 0x8a),
    RGBColor(0xa6, 0x76, 0x1d),
    RGBColor(0x55, 0x55, 0x55),
];

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

/// One line of a plot.
struct Line {
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
                    Line { throughput_mb_per_s: ascending(throughput), name: configuration }
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
    lines: Vec<Line>,
}

impl Drawing for Distribution {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        let drawn = (|| {
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(area)
                .caption(&self.title, (FONT, 24))
                .margin(16)
                .margin_right(40)
                .x_label_area_size(56)
                .y_label_area_size(72)
                .build_cartesian_2d(range(&self.lines).log_scale(), 0.0..1.0)?;
            chart
                .configure_mesh()
                .x_desc("throughput [MB/s], logarithmic")
                .y_desc("cumulative fraction of transfers")
                .x_label_formatter(&|value| format!("{}", (value * 1e4).round() / 1e4))
                .y_label_formatter(&|value| format!("{value:.1}"))
                .y_labels(11)
                .x_labels(8)
                .label_style((FONT, 18))
                .axis_desc_style((FONT, 20))
                .bold_line_style(BLACK.mix(0.15))
                .light_line_style(BLACK.mix(0.05))
                .draw()?;
            for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
                let style = colour.stroke_width(3);
                chart
                    .draw_series(LineSeries::new(steps(&line.throughput_mb_per_s), style))?
                    .label(format!("{} (n = {})", line.name, line.throughput_mb_per_s.len()))
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 28, y)], style));
            }
            draw_legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
            area.present()
        })();
        drawn.map_err(|error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("plot: {error}"))
    }
}

/// The range from the decade of the smallest to that of the largest value.
fn range(lines: &[Line]) -> Range<f64> {
    let values = || lines.iter().flat_map(|line| line.throughput_mb_per_s.iter().copied());
    let low = values().fold(f64::INFINITY, f64::min).log10().floor();
    let high = values().fold(0.0, f64::max).log10().ceil();
    if low.is_finite() && high > low { 10f64.powf(low)..10f64.powf(high) } else { 0.1..100.0 }
}

/// The empirical distribution as a staircase: it rises by 1/n at each value.
fn steps(ascending: &[f64]) -> Vec<(f64, f64)> {
    let n = ascending.len() as f64;
    ascending
        .iter()
        .enumerate()
        .flat_map(|(i, &value)| [(value, i as f64 / n), (value, (i + 1) as f64 / n)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_staircase_ends_at_one_and_the_axis_covers_all_values() {
        let values = vec![0.2, 3.0, 3.0, 40.0];
        let stairs = steps(&values);
        assert_eq!(stairs.first(), Some(&(0.2, 0.0)));
        assert_eq!(stairs.last(), Some(&(40.0, 1.0)));
        let range = range(&[Line { name: String::new(), throughput_mb_per_s: values }]);
        assert_eq!(range, 0.1..100.0);
    }
}
