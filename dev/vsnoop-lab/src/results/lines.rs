//! Lines on two axes: distributions, values over a number, and how something went on; as SVG and
//! PNG.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;

use super::drawing::{COLOURS, Drawing, Drawn, FONT, finished};

/// Colours of a paper's values.
const PAPER_COLOURS: [RGBColor; 3] =
    [RGBColor(0x00, 0x00, 0x00), RGBColor(0x80, 0x80, 0x80), RGBColor(0xb0, 0x40, 0x40)];
/// The width of a diagram with its legend, which stands right of the lines.
const LEGEND_ROOM: f64 = 1.5;
/// The shown part of a distribution: single stray values do not squeeze the rest.
const SHOWN: f64 = 0.995;

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub struct Lines {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    /// The end of the axis, if it is not that of the lines.
    pub y_max: Option<f64>,
    /// The x axis, from decade to decade.
    pub is_logarithmic: bool,
    /// Each point is marked, and the legend stands beside the lines.
    pub has_points: bool,
    pub lines: Vec<Line>,
    /// A paper's values on the same axes: dashed, or single points.
    pub paper: Vec<Line>,
}

impl Drawing for Lines {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        let points = || self.lines.iter().chain(&self.paper).flat_map(|line| &line.points);
        let shown = points().filter(|(_, y)| self.y_max != Some(1.0) || *y <= SHOWN);
        let least = shown.clone().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
        let most = shown.map(|(x, _)| *x).fold(0.0, f64::max);
        let highest = points().map(|(_, y)| *y).fold(1.0, f64::max) * 1.05;
        let y = 0.0..self.y_max.unwrap_or(highest);
        let mut builder = ChartBuilder::on(area);
        builder.caption(&self.title, (FONT, 24)).margin(16).margin_right(40);
        builder.x_label_area_size(56).y_label_area_size(84);
        finished(area, || {
            if self.is_logarithmic {
                let decade = |value: f64, end: fn(f64) -> f64| 10f64.powf(end(value.log10()));
                let (low, high) = (decade(least, f64::floor), decade(most, f64::ceil));
                let x = if high > low { low..high } else { 0.1..100.0 };
                return self.draw_in(builder.build_cartesian_2d(x.log_scale(), y)?);
            }
            let end = most.max(1.0) * if self.has_points { LEGEND_ROOM } else { 1.05 };
            self.draw_in(builder.build_cartesian_2d(least.min(0.0)..end, y)?)
        })
    }
}

impl Lines {
    /// Axes, lines in the order of [`COLOURS`], what a paper has, and their legend.
    fn draw_in<'a, B, X, Y>(&self, mut chart: ChartContext<'a, B, Cartesian2d<X, Y>>) -> Drawn<B>
    where
        B: DrawingBackend + 'a,
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .x_label_formatter(&mark)
            .y_label_formatter(&mark)
            .x_labels(12)
            .y_labels(11)
            .label_style((FONT, 18))
            .axis_desc_style((FONT, 20))
            .bold_line_style(BLACK.mix(0.15))
            .light_line_style(BLACK.mix(0.05))
            .draw()?;
        let size = if self.has_points { 4 } else { 0 };
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(3);
            chart
                .draw_series(LineSeries::new(line.points.clone(), style).point_size(size))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 28, y)], style));
        }
        for (line, colour) in self.paper.iter().zip(PAPER_COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            let dashes = DashedLineSeries::new(line.points.clone(), 8, 6, style);
            chart.draw_series(dashes)?.label(&line.name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 10, y), (x + 18, y), (x + 28, y)], style)
            });
            if let [point] = line.points[..] {
                chart.draw_series([Cross::new(point, 8, style)])?;
            }
        }
        let position = match (self.has_points, self.is_logarithmic || self.y_max.is_none()) {
            (true, _) => SeriesLabelPosition::MiddleRight,
            (_, true) => SeriesLabelPosition::UpperLeft,
            _ => SeriesLabelPosition::LowerRight,
        };
        chart
            .configure_series_labels()
            .position(position)
            .margin(16)
            .legend_area_size(36)
            .label_font((FONT, 20))
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.4))
            .draw()
    }
}

/// A mark of an axis, with the decimals that it has: axes have marks at halves, too.
fn mark(value: &f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}

/// The empirical distribution of ascending values: it rises by 1/n at each.
pub fn staircase(ascending: &[f64]) -> Vec<(f64, f64)> {
    let n = ascending.len() as f64;
    let step = |(i, &value): (usize, &f64)| [(value, i as f64 / n), (value, (i + 1) as f64 / n)];
    ascending.iter().enumerate().flat_map(step).collect()
}
