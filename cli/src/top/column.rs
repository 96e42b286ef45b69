//! A column of a table: the value that it has of a row, which is shown and by which it sorts.

use std::cmp::Ordering;
use std::net::SocketAddr;

use vsnoop_host::units;

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
    pub value: for<'a> fn(&'a R) -> Value<'a>,
    /// A column that no row uses is left out.
    pub is_used: fn(&R) -> bool,
    pub tone: fn(&R) -> Tone,
}

/// The meaning of a value to the reader; the view has a colour for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Unusual,
    Bad,
    Faint,
}

/// The value of a row in a column.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Not known, or without a meaning; sorts before what is known.
    Unknown,
    Text(&'a str),
    End(SocketAddr),
    /// A number, and how it is shown.
    Number(f64, fn(f64) -> String),
    Whole(u64, fn(u64) -> String),
    /// Bytes of that number of bytes; sorts by the first.
    Part(u64, u64),
}

impl<'a> Value<'a> {
    pub fn from_text(text: Option<&'a str>) -> Self {
        text.map_or(Self::Unknown, Self::Text)
    }

    pub fn from_number(number: Option<f64>, show: fn(f64) -> String) -> Self {
        number.map_or(Self::Unknown, |number| Self::Number(number, show))
    }

    pub fn from_whole(number: Option<u64>, show: fn(u64) -> String) -> Self {
        number.map_or(Self::Unknown, |number| Self::Whole(number, show))
    }

    /// The text of the cell.
    pub fn show_value(&self) -> String {
        match *self {
            Self::Unknown => "-".to_owned(),
            Self::Text(text) => text.to_owned(),
            Self::End(address) => address.to_string(),
            Self::Number(number, show) => show(number),
            Self::Whole(number, show) => show(number),
            Self::Part(part_bytes, bytes) => units::bytes_part(part_bytes, bytes),
        }
    }

    /// Both are of one column.
    pub fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::End(a), Self::End(b)) => a.cmp(b),
            (Self::Number(a, _), Self::Number(b, _)) => a.total_cmp(b),
            (Self::Whole(a, _), Self::Whole(b, _)) => a.cmp(b),
            (Self::Part(a, _), Self::Part(b, _)) => a.cmp(b),
            (a, b) => a.is_known().cmp(&b.is_known()),
        }
    }

    fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }
}

/// A column of text, without a meaning and with rank 0.
pub const fn column<R>(heading: &'static str, value: for<'a> fn(&'a R) -> Value<'a>) -> Column<R> {
    Column {
        heading,
        meaning: "",
        is_number: false,
        rank: 0,
        least_width: 0,
        value,
        is_used: |_| true,
        tone: |_| Tone::Plain,
    }
}

/// A column of numbers, likewise.
pub const fn number<R>(heading: &'static str, value: for<'a> fn(&'a R) -> Value<'a>) -> Column<R> {
    Column { is_number: true, ..column(heading, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_sorts_first_and_is_shown_as_such() {
        let whole = |number| Value::from_whole(number, units::count);
        assert_eq!(whole(None).compare(&whole(Some(0))), Ordering::Less);
        assert_eq!(whole(Some(10)).compare(&whole(Some(9))), Ordering::Greater);
        assert_eq!(whole(None).compare(&whole(None)), Ordering::Equal);
        assert_eq!(
            (whole(None).show_value(), whole(Some(1200)).show_value()),
            ("-".into(), "1,200".into())
        );
    }
}
