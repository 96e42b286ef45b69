//! Horizontal bars, one for each name, with their values; as SVG and PNG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::drawing::Drawing;
use super::plot::{COLOURS, FONT, SIZE};

const TITLE_HEIGHT: i32 = 60;
const MARGIN: i32 = 16;
const NAME_WIDTH: i32 = 220;
const VALUE_WIDTH: i32 = 140;

#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    pub unit: &'static str,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    /// Not negative.
    pub value: f64,
}

impl Drawing for Bars {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        let (width, height) = (SIZE.0 as i32, SIZE.1 as i32);
        let pitch = (height - TITLE_HEIGHT - MARGIN) / (self.bars.len() as i32).max(1);
        let pitch = pitch.min(60);
        let letters = (pitch * 6 / 10).clamp(8, 18);
        let longest = width - NAME_WIDTH - VALUE_WIDTH - MARGIN;
        let most = self.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        let drawn = (|| {
            area.fill(&WHITE)?;
            area.draw(&Text::new(self.title.as_str(), (MARGIN, MARGIN), (FONT, 22)))?;
            for (number, bar) in self.bars.iter().enumerate() {
                let top = TITLE_HEIGHT + number as i32 * pitch;
                let text = top + (pitch - letters) / 2 - 1;
                area.draw(&Text::new(bar.name.as_str(), (MARGIN, text), (FONT, letters)))?;
                let end = NAME_WIDTH + (bar.value / most * f64::from(longest)) as i32;
                let corners = [(NAME_WIDTH, top + pitch / 6), (end, top + pitch * 5 / 6)];
                let colour = COLOURS[usize::from(bar.name.starts_with("vsnoop"))];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                let value = format!("{} {}", digits(bar.value), self.unit);
                area.draw(&Text::new(value, (end + 8, text), (FONT, letters)))?;
            }
            area.present()
        })();
        drawn.map_err(|error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("plot: {error}"))
    }
}

/// Three significant digits.
fn digits(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}
