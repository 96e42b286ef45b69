//! A drawing becomes two files: SVG, which stays sharp, and PNG, which everything shows.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::plot::{SIZE, load_font};

pub trait Drawing {
    fn draw_on<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>;

    /// Width and height, in pixels.
    fn size(&self) -> (u32, u32) {
        SIZE
    }

    /// Writes `NAME.svg` and `NAME.png` into `dir`.
    fn draw(&self, dir: &Path, name: &str) -> Result<()> {
        load_font()?;
        let drawn = (|| {
            let svg = dir.join(format!("{name}.svg"));
            self.draw_on(&SVGBackend::new(&svg, self.size()).into_drawing_area())?;
            let png = dir.join(format!("{name}.png"));
            self.draw_on(&BitMapBackend::new(&png, self.size()).into_drawing_area())
        })();
        drawn.with_context(|| format!("draw {name} in {}", dir.display()))
    }
}
