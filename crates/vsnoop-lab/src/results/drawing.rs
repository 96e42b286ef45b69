//! A drawing becomes two files: SVG, which stays sharp, and PNG, which everything shows.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

pub const SIZE: (u32, u32) = (960, 640);
const FONT_FILE: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";
pub const FONT: &str = "sans-serif";

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

/// Draws a list of the lines of a chart.
pub fn draw_legend<'a, B: DrawingBackend + 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, B, C>,
    position: SeriesLabelPosition,
) -> std::result::Result<(), DrawingAreaErrorKind<B::ErrorType>> {
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

/// plotters needs the font's metrics for both formats.
fn load_font() -> Result<()> {
    static FONT_BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = match FONT_BYTES.get() {
        Some(bytes) => bytes,
        None => {
            let read = fs::read(FONT_FILE).with_context(|| {
                format!("read {FONT_FILE}: install the package fonts-dejavu-core")
            })?;
            FONT_BYTES.get_or_init(|| read)
        }
    };
    ensure!(
        register_font(FONT, FontStyle::Normal, bytes).is_ok(),
        "{FONT_FILE} is not a font that can be read"
    );
    Ok(())
}
