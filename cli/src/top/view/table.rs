//! A table of the rows that are on the screen. Only these are made to text.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row as ScreenRow, Table};

use super::super::column::Column;
use super::super::list::{Browse, List, Row};
use super::tone::style_of;

/// Between two columns.
const GAP: usize = 2;
/// A longer value is cut: this is an IPv6 address in brackets with a port.
const WIDEST: usize = 47;
/// Marks the column that sorts, and the direction.
const DESCENDING: char = '\u{25bc}';
const ASCENDING: char = '\u{25b2}';

/// A column on the screen.
struct Shown {
    index: usize,
    heading: String,
    width: usize,
}

/// Draws the headings, and the rows around the selected one.
pub fn draw<R: Row>(frame: &mut Frame, area: Rect, list: &mut List<R>) {
    let headings = make_headings(list);
    let (columns, cursor) = (list.columns, list.cursor());
    let sorted_by = list.sorted_by();
    let (top, rows) = list.visible_rows(usize::from(area.height).saturating_sub(1));
    let texts: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|column| (column.value)(row).show_value()).collect())
        .collect();
    let shown = fit_widths(columns, headings, &texts, sorted_by, area.width.into());
    let heading = shown.iter().map(|shown| {
        let is_number = columns[shown.index].is_number;
        let style = Style::new().bold();
        let is_sorted = shown.index == sorted_by;
        make_cell(&shown.heading, is_number, if is_sorted { style.underlined() } else { style })
    });
    let lines = rows.iter().zip(&texts).enumerate().map(|(at, (row, texts))| {
        let is_selected = top + at == cursor;
        let cells = shown.iter().map(|shown| {
            let column = &columns[shown.index];
            // On a selected row colours would be hard to read.
            let style = if is_selected { Style::new() } else { style_of((column.tone)(row)) };
            make_cell(&texts[shown.index], column.is_number, style)
        });
        let line = ScreenRow::new(cells.collect::<Vec<_>>());
        if is_selected { line.style(Style::new().reversed()) } else { line }
    });
    let widths = shown.iter().map(|shown| Constraint::Length(shown.width as u16));
    let table = Table::new(lines.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(ScreenRow::new(heading.collect::<Vec<_>>()))
        .column_spacing(GAP as u16);
    frame.render_widget(table, area);
}

fn make_cell(text: &str, is_number: bool, style: Style) -> Cell<'static> {
    let line = Line::raw(text.to_owned());
    Cell::new(Text::from(if is_number { line.right_aligned() } else { line })).style(style)
}

/// Headings by the indices of their columns; `None` for a column that no row uses.
fn make_headings<R: Row>(list: &List<R>) -> Vec<Option<String>> {
    let used = list.used_columns();
    let mark = if list.is_descending() { DESCENDING } else { ASCENDING };
    let heading = |(index, column): (usize, &Column<R>)| {
        let is_sorted = index == list.sorted_by();
        let mark = if is_sorted { format!("{}{mark}", column.heading) } else { String::new() };
        let heading = if is_sorted { mark } else { column.heading.to_owned() };
        used.contains(&index).then_some(heading)
    };
    list.columns.iter().enumerate().map(heading).collect()
}

/// The columns that have room, by their ranks, in their order; the one that sorts is among them.
fn fit_widths<R>(
    columns: &[Column<R>],
    headings: Vec<Option<String>>,
    texts: &[Vec<String>],
    sorted_by: usize,
    width: usize,
) -> Vec<Shown> {
    let mut all: Vec<_> = headings
        .into_iter()
        .enumerate()
        .filter_map(|(index, heading)| {
            let heading = heading?;
            let widest = texts.iter().map(|texts| texts[index].chars().count()).max().unwrap_or(0);
            // The mark of the sort has its place beside each heading.
            let own = columns[index].heading.chars().count() + 1;
            let width = widest.max(columns[index].least_width).max(own).min(WIDEST);
            Some(Shown { index, heading, width })
        })
        .collect();
    let rank =
        |shown: &Shown| (shown.index != 0, shown.index != sorted_by, columns[shown.index].rank);
    all.sort_by_key(rank);
    let mut left = width + GAP;
    let mut is_first = true;
    all.retain(|shown| {
        // What is less important than a column without room is left out, too: columns would come
        // and go with every value.
        let fits = is_first || shown.width + GAP <= left;
        left = if fits { left.saturating_sub(shown.width + GAP) } else { 0 };
        is_first = false;
        fits
    });
    all.sort_by_key(|shown| shown.index);
    all
}
