//! Tables of samples, for terminals and for reports.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

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

/// A table with this header, whose lines Markdown has in one. The first `words` columns are words;
/// the others are numbers, which stand to the right, unless they have no digit.
pub fn grid(style: Style, header: &[&str], words: usize, rows: Vec<Vec<String>>) -> String {
    let has_digit = |at: usize| rows.iter().any(|row| row[at].contains(char::is_numeric));
    let is_number: Vec<_> = (0..header.len()).map(|at| at >= words && has_digit(at)).collect();
    let mut table = Table::new();
    match style {
        Style::Terminal => table
            .load_preset(presets::UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(TERMINAL_COLUMNS)
            .set_header(header),
        Style::Markdown => table
            .load_preset(presets::ASCII_MARKDOWN)
            .set_header(header.iter().map(|name| name.replace('\n', " "))),
    };
    for (column, _) in table.column_iter_mut().zip(&is_number).filter(|(_, is)| **is) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.add_rows(rows).to_string();
    // comfy-table writes no alignment into the line below the header of Markdown.
    let ends: Vec<_> = text.match_indices("-|").map(|(at, _)| at).collect();
    for (at, _) in ends.into_iter().zip(is_number).filter(|(_, is)| *is) {
        text.replace_range(at..=at, ":");
    }
    text
}

/// The figures of an experiment.
pub fn figures(style: Style, figures: &[Figure]) -> String {
    let text = |value: f64| format!("{value:.*}", if value.fract() == 0.0 { 0 } else { 2 });
    let row = |one: &Figure| vec![one.name.clone(), text(one.value), one.unit.clone()];
    grid(style, &["figure", "value", "unit"], 1, figures.iter().map(row).collect())
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
