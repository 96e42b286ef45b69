//! Reads the values of a TOML file. Every error names the line, the column and the key, and says
//! what is allowed there.
//!
//! Two steps: serde puts values of any type under the keys that a table has ([`Field`]; an unknown
//! key is an error, because it was meant to have an effect), and a [`Reader`] turns each into what
//! it means. A file format implements [`Reader`] for its text, and so decides what its errors are.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use toml::{Spanned, Value};

/// Characters of a line that an error shows.
const EXCERPT_CHARS: usize = 80;

/// A value of any type, under a key that may be missing.
pub type Field = Option<Spanned<Value>>;

/// A place in a text; line and column begin with 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub line: usize,
    /// Counted in characters.
    pub column: usize,
}

impl Place {
    /// The place of the byte at this offset.
    pub fn of_offset(text: &str, offset: usize) -> Self {
        let before = &text.as_bytes()[..offset.min(text.len())];
        let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Self { line, column: String::from_utf8_lossy(&before[begin..]).chars().count() + 1 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// An error in a text, whatever it configures.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It is no TOML, or has an unknown key. `excerpt`: the line, if it is not empty.
    #[error("{message}{}", quoted(excerpt))]
    Toml { message: String, excerpt: String },
    /// The value `found` of `key`, as TOML writes it.
    #[error("{key} = {found}: {allowed}")]
    Value { key: String, found: String, allowed: String },
}

impl Fault {
    pub fn value(key: &str, found: &Value, allowed: impl fmt::Display) -> Self {
        Self::Value { key: key.to_owned(), found: shown(found), allowed: allowed.to_string() }
    }
}

fn quoted(excerpt: &str) -> String {
    if excerpt.is_empty() { String::new() } else { format!(", in `{excerpt}`") }
}

/// The text of a file.
pub trait Reader {
    type Error;

    fn contents(&self) -> &str;

    /// The error for a fault at this offset of the text.
    fn fault(&self, offset: usize, fault: Fault) -> Self::Error;

    fn place(&self, offset: usize) -> Place {
        Place::of_offset(self.contents(), offset)
    }

    /// The first step: tables with known keys.
    fn read_document<T: DeserializeOwned>(&self) -> Result<T, Self::Error> {
        toml::from_str(self.contents()).map_err(|error| {
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            // The words of TOML for those of serde.
            let message = message
                .replace(
                    "expected a sequence",
                    "expected double brackets, since there may be several",
                )
                .replace("invalid type: map", "invalid type: a table in single brackets")
                .replace("invalid type: sequence", "invalid type: a list or double brackets");
            let Some(span) = error.span() else {
                return self.fault(0, Fault::Toml { message, excerpt: String::new() });
            };
            // The parser names the key in errors about unknown keys only, so the line is quoted.
            let lines = &mut self.contents().lines();
            let line = lines.nth(self.place(span.start).line - 1).unwrap_or_default().trim();
            self.fault(span.start, Fault::Toml { message, excerpt: excerpt(line) })
        })
    }

    fn wrong(&self, key: &str, found: &Spanned<Value>, allowed: impl fmt::Display) -> Self::Error {
        self.fault(found.span().start, Fault::value(key, found.get_ref(), allowed))
    }

    fn read_text<T, E: fmt::Display>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Self::Error> {
        let Some(found) = field else { return Ok(None) };
        match found.get_ref() {
            Value::String(text) => {
                read(text).map(Some).map_err(|allowed| self.wrong(key, found, allowed))
            }
            _ => Err(self.wrong(key, found, "give a text in quotes")),
        }
    }

    /// A text, or a whole number that means the same as its digits in quotes.
    fn read_quantity<T, E: fmt::Display>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Self::Error> {
        let Some(found) = field else { return Ok(None) };
        let read = match found.get_ref() {
            Value::String(text) => read(text),
            Value::Integer(number) => read(&number.to_string()),
            // No quantity: the error says what is allowed.
            _ => read(""),
        };
        read.map(Some).map_err(|allowed| self.wrong(key, found, allowed))
    }

    fn read_number<T: TryFrom<i64> + PartialOrd + fmt::Display>(
        &self,
        key: &str,
        field: &Field,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, Self::Error> {
        let Some(found) = field else { return Ok(None) };
        let number = found.get_ref().as_integer().and_then(|number| T::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let allowed = format!("give a number from {} to {}", range.start(), range.end());
            self.wrong(key, found, allowed)
        })
    }

    fn read_truth(&self, key: &str, field: &Field) -> Result<Option<bool>, Self::Error> {
        let Some(found) = field else { return Ok(None) };
        let truth = found.get_ref().as_bool();
        truth.map(Some).ok_or_else(|| self.wrong(key, found, "give true or false"))
    }

    /// One prefix, or a list.
    fn read_prefixes(&self, key: &str, field: &Field) -> Result<Vec<IpNet>, Self::Error> {
        let prefix = |text: &str| {
            let ip = || text.parse::<IpAddr>().ok().map(IpNet::from);
            text.parse::<IpNet>().ok().or_else(ip).map(|prefix| prefix.trunc())
        };
        let allowed =
            "give a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\", or a list of them";
        self.read_list(key, field, prefix, allowed)
    }

    /// One text, or an array of at least one.
    fn read_list<T>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&str) -> Option<T>,
        allowed: &str,
    ) -> Result<Vec<T>, Self::Error> {
        self.read_values(key, field, |value| read(value.as_str()?), allowed)
    }

    /// One value, or an array of at least one.
    fn read_values<T>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&Value) -> Option<T>,
        allowed: &str,
    ) -> Result<Vec<T>, Self::Error> {
        let Some(found) = field else { return Ok(Vec::new()) };
        let all: Option<Vec<T>> = match found.get_ref() {
            Value::Array(values) => values.iter().map(read).collect(),
            value => read(value).map(|one| vec![one]),
        };
        all.filter(|all| !all.is_empty()).ok_or_else(|| self.wrong(key, found, allowed))
    }
}

/// The beginning of a line, which may have any contents.
fn excerpt(line: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    line.chars().take(EXCERPT_CHARS).map(printable).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(truth) => truth.to_string(),
        other => format!("({})", other.type_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_in_lines_and_characters_from_one() {
        let at = |offset| {
            let place = Place::of_offset("a = 1\n\u{fc} = \"x\"\n", offset);
            (place.line, place.column)
        };
        assert_eq!(at(0), (1, 1));
        assert_eq!(at(4), (1, 5));
        assert_eq!(at(6), (2, 1));
        assert_eq!(at(11), (2, 5), "the first letter has two bytes");
        assert_eq!(at(999), (3, 1), "beyond the end");
    }
}
