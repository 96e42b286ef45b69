//! Lines over a number: of senders, in the form of the figures of the ICTCP paper, or of VMs; as
//! SVG and PNG.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::drawing::{Axis, Drawing, Line, draw_lines, finished, framed, mark};

/// The width of a diagram with its legend, which stands right of the lines.
const LEGEND_ROOM: f64 = 1.5;

/// A diagram of lines.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub x_label: &'static str,
    pub y_label: &'static str,
    pub y_max: f64,
    /// Ascending by the number.
    pub lines: Vec<Line>,
    /// What a paper has on the same axes.
    pub paper: Vec<Line>,
}

impl Drawing for Chart {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        finished(area, || {
            let chart = framed(area, &self.title, 84)
                .build_cartesian_2d(0.0..self.most() * LEGEND_ROOM, 0.0..self.y_max)?;
            let axes =
                [self.x_label, self.y_label].map(|label| Axis { label, labels: 11, format: &mark });
            let lines = self.lines.iter().cloned();
            draw_lines(chart, axes, lines, &self.paper, 4, SeriesLabelPosition::MiddleRight)
        })
    }
}

impl Chart {
    fn most(&self) -> f64 {
        let points = self.lines.iter().chain(&self.paper).flat_map(|line| &line.points);
        points.map(|(x, _)| *x).fold(1.0, f64::max)
    }
}
