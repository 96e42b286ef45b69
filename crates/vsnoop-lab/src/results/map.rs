//! A map: a coloured field with its value for each pair of two settings; as SVG and PNG.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::drawing::{COLOURS, Drawing, FONT, SIZE, finished};

const TOP: i32 = 70;
const BOTTOM: i32 = 90;
const LEFT: i32 = 170;
const MARGIN: i32 = 20;
const LETTERS: i32 = 20;
/// A ratio of this, or of its inverse, has the full colour.
const FULL: f64 = 8.0;
const NOISE: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

#[derive(Clone, Debug)]
pub struct Map {
    /// Of its files, without extension.
    pub name: String,
    pub title: String,
    pub x_label: &'static str,
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    /// By row and column; `None` where nothing was measured.
    pub fields: Vec<Vec<Option<Field>>>,
}

#[derive(Clone, Debug)]
pub struct Field {
    /// A ratio: more than 1 is better.
    pub value: f64,
    /// May have several lines.
    pub text: String,
    pub is_noise: bool,
}

impl Field {
    /// White for 1, blue for more, orange for less, grey for what is noise.
    fn colour(&self) -> RGBColor {
        if self.is_noise {
            return NOISE;
        }
        let strength = (self.value.ln().abs() / FULL.ln()).min(1.0);
        let full = if self.value >= 1.0 { COLOURS[1] } else { COLOURS[0] };
        let mixed = |full: u8| (255.0 - strength * (255.0 - f64::from(full))) as u8;
        RGBColor(mixed(full.0), mixed(full.1), mixed(full.2))
    }

    fn text_colour(&self) -> RGBColor {
        let RGBColor(red, green, blue) = self.colour();
        let light = u32::from(red) * 3 + u32::from(green) * 6 + u32::from(blue);
        if light < 1300 { WHITE } else { BLACK }
    }
}

impl Drawing for Map {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        let (width, height) = (SIZE.0 as i32, SIZE.1 as i32);
        let column_width = (width - LEFT - MARGIN) / (self.columns.len() as i32).max(1);
        let row_height = (height - TOP - BOTTOM) / (self.rows.len() as i32).max(1);
        let middle = Pos::new(HPos::Center, VPos::Center);
        let words = |size: i32| (FONT, size).into_font().color(&BLACK).pos(middle);
        finished(area, || {
            area.draw(&Text::new(self.title.as_str(), (MARGIN, MARGIN), (FONT, 24)))?;
            let end = TOP + row_height * self.rows.len() as i32;
            for (column, name) in self.columns.iter().enumerate() {
                let at = (LEFT + column_width * column as i32 + column_width / 2, end + 22);
                area.draw(&Text::new(name.as_str(), at, words(LETTERS)))?;
            }
            let label = (LEFT + (width - LEFT - MARGIN) / 2, end + 58);
            area.draw(&Text::new(self.x_label, label, words(LETTERS)))?;
            for (row, (name, fields)) in self.rows.iter().zip(&self.fields).enumerate() {
                let top = TOP + row_height * row as i32;
                let at = (LEFT / 2, top + row_height / 2);
                area.draw(&Text::new(name.as_str(), at, words(LETTERS - 2)))?;
                for (column, field) in fields.iter().enumerate() {
                    let Some(field) = field else { continue };
                    let left = LEFT + column_width * column as i32;
                    let corners = [(left + 2, top + 2), (left + column_width, top + row_height)];
                    area.draw(&Rectangle::new(corners, field.colour().filled()))?;
                    let colour = field.text_colour();
                    let lines: Vec<_> = field.text.lines().collect();
                    let first = top + row_height / 2 - (lines.len() as i32 - 1) * LETTERS * 2 / 3;
                    for (number, line) in lines.into_iter().enumerate() {
                        let at = (left + column_width / 2, first + number as i32 * LETTERS * 4 / 3);
                        let style = words(LETTERS).color(&colour);
                        area.draw(&Text::new(line, at, style))?;
                    }
                }
            }
            Ok(())
        })
    }
}
