//! Tables for people, as wide as [`fold::terminal_width`] says.
//!
//! Text wraps between words, numbers and single words do not. Columns that do not fit even so
//! follow below, in another block that begins with the first column again.

use std::io::{IsTerminal, stdout};

use super::fold;

/// Shown instead of a table if no port is attached.
pub const NOTHING: &str = "no port is attached; `vsnoop doctor` shows which VMs would gain";

/// Between two columns.
const GAP: usize = 2;
/// Text does not wrap to less.
const TEXT: usize = 24;
/// A longer word is cut: this is an IPv6 address in brackets with a port.
const WORD: usize = 47;

pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

struct Column {
    heading: String,
    is_number: bool,
    /// Width of the longest cell, and the least to which its text can wrap.
    widest: usize,
    least: usize,
}

/// A table with these headings; columns whose heading starts with '>' have numbers, which are
/// aligned to the right.
pub fn new(headings: &[&str]) -> Table {
    let column = |heading: &&str| {
        let text = heading.trim_start_matches('>');
        let width = text.chars().count();
        Column {
            heading: text.to_owned(),
            is_number: heading.starts_with('>'),
            widest: width,
            least: width,
        }
    };
    Table { columns: headings.iter().map(column).collect(), rows: Vec::new() }
}

impl Table {
    pub fn add_row(&mut self, row: impl Into<Vec<String>>) {
        let row = row.into();
        for (column, cell) in self.columns.iter_mut().zip(&row) {
            let width = cell.chars().count();
            let word = fold::split_words(cell).map(|word| word.chars().count()).max().unwrap_or(0);
            let least = if column.is_number { width } else { word.max(width.min(TEXT)) };
            column.widest = column.widest.max(width);
            column.least = column.least.max(least.min(WORD));
        }
        self.rows.push(row);
    }

    /// Columns that fit beside each other, each with its width.
    fn split_blocks(&self, width: usize) -> Vec<Vec<(usize, usize)>> {
        let least = |index: usize| self.columns[index].least;
        let mut blocks = vec![vec![(0, least(0))]];
        let mut taken = least(0);
        for index in 1..self.columns.len() {
            let full = taken + GAP + least(index) > width;
            match blocks.last_mut() {
                Some(block) if !full || block.len() == 1 => block.push((index, least(index))),
                _ => {
                    blocks.push(vec![(0, least(0)), (index, least(index))]);
                    taken = least(0);
                }
            }
            taken += GAP + least(index);
        }
        for block in &mut blocks {
            let taken: usize = block.iter().map(|(_, width)| width + GAP).sum();
            let mut left = (width + GAP).saturating_sub(taken);
            for (index, width) in block {
                let more = (self.columns[*index].widest - *width).min(left);
                (*width, left) = (*width + more, left - more);
            }
        }
        blocks
    }

    /// A row in as many lines as its cells need.
    fn block_lines<'a>(
        &self,
        block: &[(usize, usize)],
        cell: impl Fn(usize) -> &'a str,
    ) -> Vec<String> {
        let cells: Vec<_> =
            block.iter().map(|(index, width)| cut_cell(cell(*index), *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        let line = |nth: usize| {
            let parts = cells.iter().zip(block).map(|(cell, (index, width))| {
                let text = cell.get(nth).map_or("", String::as_str);
                let is_number = self.columns[*index].is_number;
                if is_number { format!("{text:>width$}") } else { format!("{text:<width$}") }
            });
            let line = parts.collect::<Vec<_>>().join(&" ".repeat(GAP));
            line.trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }
}

/// The lines of a cell; a word that is longer than the column is cut.
fn cut_cell(text: &str, width: usize) -> Vec<String> {
    let pieces = |line: String| {
        let chars: Vec<_> = line.chars().collect();
        chars.chunks(width.max(1)).map(String::from_iter).collect::<Vec<_>>()
    };
    fold::wrap_line(text, width).into_iter().flat_map(pieces).collect()
}

/// The table as text, without blanks at the ends of lines.
pub fn render_table(table: &Table) -> String {
    let is_bold = stdout().is_terminal();
    let mut lines = Vec::new();
    for block in table.split_blocks(fold::terminal_width()) {
        let headings = table.block_lines(&block, |index| &table.columns[index].heading);
        let bold = |line: String| if is_bold { format!("\x1b[1m{line}\x1b[0m") } else { line };
        lines.extend(headings.into_iter().map(bold));
        for row in &table.rows {
            lines.extend(table.block_lines(&block, |index| &row[index]));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_before_columns_go_below_and_no_number_is_broken() {
        let mut table = new(&["port", ">bytes", "verdict"]);
        table.add_row(["tap0".into(), "12.3 MiB".into(), "it waits for its CPU; ".repeat(7)]);
        let shown = render_table(&table);
        assert!(shown.starts_with("port     bytes  verdict\ntap0  12.3 MiB  it waits"), "{shown}");
        assert!(shown.lines().count() > 2 && !shown[20..].contains("port"), "{shown}");

        let address = format!("[{}]:65535", ["2001"; 8].join(":"));
        let mut table = new(&["sender", "vm", ">on its way", "mode"]);
        table.add_row([address.clone(), address, "12.3 MiB".into(), "unexpected-seq".into()]);
        let shown = render_table(&table);
        assert_eq!(shown.matches("[2001:").count(), 3, "{shown}");
        assert_eq!(shown.matches(":65535").count(), 3, "{shown}");
        assert!(shown.contains("12.3 MiB  unexpected-seq"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= fold::WIDTH), "{shown}");
    }

    #[test]
    fn a_name_that_is_longer_than_a_column_is_cut() {
        let mut table = new(&["link", "peer"]);
        table.add_row(["x".repeat(64), "y".repeat(300)]);
        let shown = render_table(&table);
        assert!(shown.lines().all(|line| line.chars().count() <= fold::WIDTH), "{shown}");
        assert_eq!((shown.matches('x').count(), shown.matches('y').count()), (64, 300));
    }
}
