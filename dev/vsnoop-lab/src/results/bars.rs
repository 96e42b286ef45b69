//! Horizontal bars, one for each name, with their values, in the colours of their groups; as SVG
//! and PNG.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use serde::Deserialize;

use super::drawing::{Drawing, FONT, SIZE, finished};
use super::table::milliseconds as three_digits;

const TITLE_HEIGHT: i32 = 84;
const MARGIN: i32 = 16;
const NAME_WIDTH: i32 = 250;
const VALUE_WIDTH: i32 = 140;
/// The height of a bar with the space around it, if there are few bars.
const WIDEST_PITCH: i32 = 60;
const LEAST_HEIGHT: i32 = 200;
/// The legend's line, below the title.
const LEGEND_TOP: i32 = 50;
const LEGEND_LETTERS: i32 = 15;
const SWATCH: i32 = 14;

#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    pub unit: String,
    /// Groups of bars, as the legend calls them; those without a bar are left out there.
    pub groups: Vec<Group>,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Group {
    pub name: String,
    /// Red, green, blue.
    pub colour: [u8; 3],
}

impl Group {
    fn colour(&self) -> RGBColor {
        let [red, green, blue] = self.colour;
        RGBColor(red, green, blue)
    }
}

#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    /// The length of the bar; negative values have no bar.
    pub value: f64,
    /// The index of its group in [`Bars::groups`].
    pub group: usize,
}

impl Bars {
    /// Few bars need less of a picture.
    fn height(&self) -> i32 {
        let bars = self.bars.len() as i32 * WIDEST_PITCH;
        (TITLE_HEIGHT + bars + MARGIN).clamp(LEAST_HEIGHT, SIZE.1 as i32)
    }
}

impl Drawing for Bars {
    fn size(&self) -> (u32, u32) {
        (SIZE.0, self.height() as u32)
    }

    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        let (width, height) = (SIZE.0 as i32, self.height());
        let pitch = (height - TITLE_HEIGHT - MARGIN) / (self.bars.len() as i32).max(1);
        let pitch = pitch.min(WIDEST_PITCH);
        let letters = (pitch * 6 / 10).clamp(8, 18);
        let longest = width - NAME_WIDTH - VALUE_WIDTH - MARGIN;
        let most = self.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        finished(area, || {
            area.draw(&Text::new(self.title.as_str(), (MARGIN, MARGIN), (FONT, 22)))?;
            let mut left = MARGIN;
            for (number, group) in self.groups.iter().enumerate() {
                if !self.bars.iter().any(|bar| bar.group == number) {
                    continue;
                }
                let corners = [(left, LEGEND_TOP), (left + SWATCH, LEGEND_TOP + SWATCH)];
                area.draw(&Rectangle::new(corners, group.colour().filled()))?;
                let style = (FONT, LEGEND_LETTERS).into_text_style(area);
                let width = area.estimate_text_size(&group.name, &style)?.0 as i32;
                let at = (left + SWATCH + 6, LEGEND_TOP);
                area.draw(&Text::new(group.name.as_str(), at, style))?;
                left += SWATCH + 6 + width + 24;
            }
            for (number, bar) in self.bars.iter().enumerate() {
                let top = TITLE_HEIGHT + number as i32 * pitch;
                let text = top + (pitch - letters) / 2 - 1;
                area.draw(&Text::new(bar.name.as_str(), (MARGIN, text), (FONT, letters)))?;
                let end = NAME_WIDTH + (bar.value.max(0.0) / most * f64::from(longest)) as i32;
                let corners = [(NAME_WIDTH, top + pitch / 6), (end, top + pitch * 5 / 6)];
                let colour = self.groups.get(bar.group).map_or(BLACK, Group::colour);
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                let value = format!("{} {}", three_digits(bar.value), self.unit);
                area.draw(&Text::new(value, (end + 8, text), (FONT, letters)))?;
            }
            Ok(())
        })
    }
}
