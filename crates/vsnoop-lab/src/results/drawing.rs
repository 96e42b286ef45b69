//! A drawing becomes two files: SVG, which stays sharp, and PNG, which everything shows.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
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

/// Of what a paper has.
const PAPER_COLOURS: [RGBColor; 3] =
    [RGBColor(0x00, 0x00, 0x00), RGBColor(0x80, 0x80, 0x80), RGBColor(0xb0, 0x40, 0x40)];

/// The drawing errors of the backend `B`.
type Drawn<B> = std::result::Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

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

/// A chart with a title, and room for the labels of its axes: `y_width` of those on the left.
pub fn framed<'a, 'b, B: DrawingBackend>(
    area: &'a DrawingArea<B, Shift>,
    title: &str,
    y_width: u32,
) -> ChartBuilder<'a, 'b, B> {
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, (FONT, 24))
        .margin(16)
        .margin_right(40)
        .x_label_area_size(56)
        .y_label_area_size(y_width);
    builder
}

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Axis<'a> {
    pub label: &'a str,
    /// How many of its values are written, at most.
    pub labels: usize,
    pub format: &'a dyn Fn(&f64) -> String,
}

/// A mark of an axis, with the decimals that it has: axes have marks at halves, too.
pub fn mark(value: &f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}

/// Draws axes, lines in the order of [`COLOURS`], what a paper has (dashed, or single points), and
/// their legend at `position`.
pub fn draw_lines<'a, B, X, Y>(
    mut chart: ChartContext<'a, B, Cartesian2d<X, Y>>,
    [x, y]: [Axis<'_>; 2],
    lines: impl Iterator<Item = Line>,
    paper: &[Line],
    point_size: u32,
    position: SeriesLabelPosition,
) -> Drawn<B>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(x.label)
        .y_desc(y.label)
        .x_label_formatter(&x.format)
        .y_label_formatter(&y.format)
        .x_labels(x.labels)
        .y_labels(y.labels)
        .label_style((FONT, 18))
        .axis_desc_style((FONT, 20))
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for (line, colour) in lines.zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(3);
        chart
            .draw_series(LineSeries::new(line.points, style).point_size(point_size))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 28, y)], style));
    }
    for (line, colour) in paper.iter().zip(PAPER_COLOURS.iter().cycle()) {
        let (style, points) = (colour.stroke_width(2), line.points.clone());
        let dashes = DashedLineSeries::new(points, 8, 6, style);
        chart.draw_series(dashes)?.label(&line.name).legend(move |(x, y)| {
            PathElement::new([(x, y), (x + 10, y), (x + 18, y), (x + 28, y)], style)
        });
        if let [point] = line.points[..] {
            chart.draw_series([Cross::new(point, 8, style)])?;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_an_axis_differ_where_its_values_do() {
        assert_eq!([0.0, 0.5, 1.0, 12.0].map(|value| mark(&value)), ["0", "0.5", "1", "12"]);
    }
}
