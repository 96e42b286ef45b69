//! Tables for people, in at most 80 columns where the content allows.

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};

/// Shown instead of a table if no port is attached.
pub const NOTHING: &str = "no port is attached; `vsnoop doctor` shows which VMs would gain";

/// A table with these headings; columns whose heading starts with '>' are aligned to the right.
pub fn new(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(
        headings.iter().map(|heading| {
            Cell::new(heading.trim_start_matches('>')).add_attribute(Attribute::Bold)
        }),
    );
    for (column, heading) in table.column_iter_mut().zip(headings) {
        column.set_padding((0, 2));
        if heading.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The table as text, without blanks at the ends of lines.
pub fn text(table: &Table) -> String {
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
