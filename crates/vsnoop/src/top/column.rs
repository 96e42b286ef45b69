//! A column of a table: what it shows of a row, and how it sorts.

use std::cmp::Ordering;

pub struct Column<R> {
    pub heading: &'static str,
    /// For the help.
    pub meaning: &'static str,
    /// Numbers are aligned to the right, and sorted downwards.
    pub is_number: bool,
    /// Columns with a higher one are left out first where a screen is too narrow.
    pub rank: u8,
    /// Width that keeps columns in their places while values change.
    pub least_width: usize,
    pub text: fn(&R) -> String,
    pub compare: fn(&R, &R) -> Ordering,
    /// A column that no row uses is left out.
    pub is_used: fn(&R) -> bool,
    pub tone: fn(&R) -> Tone,
}

/// What a value means to the reader; the view has a colour for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Unusual,
    Bad,
    Faint,
}

/// A column of text, without a meaning and with rank 0.
pub const fn column<R>(
    heading: &'static str,
    text: fn(&R) -> String,
    compare: fn(&R, &R) -> Ordering,
) -> Column<R> {
    Column {
        heading,
        meaning: "",
        is_number: false,
        rank: 0,
        least_width: 0,
        text,
        compare,
        is_used: |_| true,
        tone: |_| Tone::Plain,
    }
}

/// A column of numbers, likewise.
pub const fn number<R>(
    heading: &'static str,
    text: fn(&R) -> String,
    compare: fn(&R, &R) -> Ordering,
) -> Column<R> {
    Column { is_number: true, ..column(heading, text, compare) }
}

/// Values that are not known come first.
pub fn by_number(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}
