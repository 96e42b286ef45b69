//! CDFs of times, in the form of Fig. 1(b) of the vSnoop report: milliseconds on a linear axis; as
//! SVG and PNG.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::drawing::{Axis, Drawing, Line, draw_lines, finished, framed, mark};
use super::statistics::percentile;

#[derive(Clone, Debug)]
pub struct Cdf {
    pub title: String,
    pub x_label: &'static str,
    pub curves: Vec<Curve>,
}

#[derive(Clone, Debug)]
pub struct Curve {
    pub name: String,
    /// Ascending.
    pub values: Vec<f64>,
}

impl Drawing for Cdf {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        finished(area, || {
            let chart = framed(area, &self.title, 84)
                .build_cartesian_2d(0.0..self.longest(), 0.0..1.0f64)?;
            let axes = [
                Axis { label: self.x_label, labels: 13, format: &mark },
                Axis {
                    label: "cumulative fraction",
                    labels: 11,
                    format: &|value| format!("{value:.1}"),
                },
            ];
            let lines = self.curves.iter().map(|Curve { name, values }| {
                let name = format!("{name} (n = {})", values.len());
                Line { name, points: steps(values) }
            });
            draw_lines(chart, axes, lines, &[], 0, SeriesLabelPosition::LowerRight)
        })
    }
}

impl Cdf {
    /// The end of the axis: single stray values do not squeeze the rest.
    fn longest(&self) -> f64 {
        let ends = self.curves.iter().filter_map(|curve| percentile(&curve.values, 99.5));
        ends.fold(1.0, f64::max) * 1.05
    }
}

/// The empirical distribution as a staircase: it rises by 1/n at each value.
pub fn steps(ascending: &[f64]) -> Vec<(f64, f64)> {
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
    fn the_staircase_ends_at_one() {
        let stairs = steps(&[0.2, 3.0, 3.0, 40.0]);
        assert_eq!(stairs.first(), Some(&(0.2, 0.0)));
        assert_eq!(stairs.last(), Some(&(40.0, 1.0)));
    }
}
