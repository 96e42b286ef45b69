//! Tables of samples, for terminals and for reports.

use comfy_table::{Cell as Field, CellAlignment, ContentArrangement, Table, presets};

use super::Figure;

/// Most columns of a terminal that a table takes.
const TERMINAL_COLUMNS: u16 = 100;

/// Stands for a value that there is not.
pub const NOT_MEASURED: &str = "-";

/// Output format of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Terminal,
    Markdown,
}

/// A table with this header, whose lines Markdown has in one; the first `words` columns are words,
/// the others numbers.
pub fn grid(style: Style, header: &[&str], words: usize, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    match style {
        Style::Terminal => table
            .load_preset(presets::UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(TERMINAL_COLUMNS),
        Style::Markdown => table.load_preset(presets::ASCII_MARKDOWN),
    };
    table.set_header(header.iter().map(|name| match style {
        Style::Terminal => (*name).to_owned(),
        Style::Markdown => name.replace('\n', " "),
    }));
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(|(column, text)| {
            let right = column >= words;
            let alignment = if right { CellAlignment::Right } else { CellAlignment::Left };
            Field::new(text).set_alignment(alignment)
        }));
    }
    table.to_string()
}

/// The figures of an experiment; `text` formats their values.
pub fn figures(style: Style, figures: &[Figure], text: fn(f64) -> String) -> String {
    let row = |one: &Figure| vec![one.name.clone(), text(one.value), one.unit.clone()];
    grid(style, &["figure", "value", "unit"], 1, figures.iter().map(row).collect())
}

/// Formats a value, or [`NOT_MEASURED`].
pub fn or_dash(text: fn(f64) -> String) -> impl Fn(Option<f64>) -> String {
    move |value| value.map_or(NOT_MEASURED.into(), text)
}

/// Three significant digits.
pub fn milliseconds(value: f64) -> String {
    match value {
        v if v < 0.1 => format!("{v:.3}"),
        v if v < 1.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// `0.97`, `3.20`, `41`.
pub fn ratio(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}
