//! A drawing becomes two files: SVG, which stays sharp, and PNG, which everything shows.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

pub const SIZE: (u32, u32) = (960, 640);
const FONT_FILE: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";
pub const FONT: &str = "sans-serif";

pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0x1b, 0x9e, 0x77),
    RGBColor(0x75, 0x70, 0xb3),
    RGBColor(0xe7, 0x29, 0x8a),
    RGBColor(0xa6, 0x76, 0x1d),
    RGBColor(0x55, 0x55, 0x55),
];

/// The drawing errors of the backend `B`.
pub type Drawn<B> = std::result::Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

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

/// Draws on a white area, and shows it.
pub fn finished<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    draw: impl FnOnce() -> Drawn<B>,
) -> Result<()> {
    let drawn = area.fill(&WHITE).and_then(|()| draw()).and_then(|()| area.present());
    drawn.map_err(|error| anyhow!("plot: {error}"))
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
