//! Lines over the number of senders, in the form of the figures of the ICTCP paper; as SVG and PNG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::drawing::{Drawing, FONT, draw_legend};
use super::plot::COLOURS;

/// A diagram of lines.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub y_label: &'static str,
    pub y_max: f64,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    /// Number of senders and value, ascending.
    pub points: Vec<(f64, f64)>,
}

impl Drawing for Chart {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        let drawn = (|| {
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(area)
                .caption(&self.title, (FONT, 24))
                .margin(16)
                .margin_right(40)
                .x_label_area_size(56)
                .y_label_area_size(84)
                .build_cartesian_2d(0.0..self.most_senders() * 1.02, 0.0..self.y_max)?;
            chart
                .configure_mesh()
                .x_desc("senders")
                .y_desc(self.y_label)
                .x_label_formatter(&|value| format!("{value:.0}"))
                .y_label_formatter(&|value| format!("{value:.0}"))
                .label_style((FONT, 18))
                .axis_desc_style((FONT, 20))
                .bold_line_style(BLACK.mix(0.15))
                .light_line_style(BLACK.mix(0.05))
                .draw()?;
            for (number, line) in self.lines.iter().enumerate() {
                let colour = COLOURS[number % COLOURS.len()];
                let style = colour.stroke_width(3);
                chart
                    .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(4))?
                    .label(&line.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 28, y)], style));
            }
            draw_legend(&mut chart, SeriesLabelPosition::MiddleRight)?;
            area.present()
        })();
        drawn.map_err(|error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("plot: {error}"))
    }
}

impl Chart {
    fn most_senders(&self) -> f64 {
        let points = self.lines.iter().flat_map(|line| &line.points);
        points.map(|(senders, _)| *senders).fold(1.0, f64::max)
    }
}
