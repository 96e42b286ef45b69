//! What is wrong with the form of a file, in the words of who wrote it.
//!
//! The parser and serde speak of maps, sequences and fields. Here their message gets the key that it is about, and,
//! where the text cannot be read at all, the line. What a value may be is not known here (`file` says it).

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::de::{DeTable, Error};

/// What `#[serde(expecting)]` says of tables of which there may be several.
const SEVERAL: &str = "tables in double brackets";
/// Of a line.
const SHOWN_CHARS: usize = 80;

/// `[[name]]`, any number of them.
pub fn tables<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Spanned<T>>, D::Error> {
    struct Tables<T>(std::marker::PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Tables<T> {
        type Value = Vec<Spanned<T>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(SEVERAL)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut tables = Vec::new();
            while let Some(table) = all.next_element()? {
                tables.push(table);
            }
            Ok(tables)
        }
    }

    deserializer.deserialize_seq(Tables(std::marker::PhantomData))
}

/// One line about an error, without its place.
pub fn words(text: &str, error: &Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let place = Place::of(text, at);
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    if DeTable::parse(text).is_err() { place.unreadable(&message) } else { place.unfit(&message) }
}

/// The line that an error is in, and the table that it belongs to.
struct Place<'a> {
    line: &'a str,
    /// As it stands there.
    header: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn of(text: &'a str, at: usize) -> Self {
        let line_of = |at: usize| {
            text.lines().scan(0, move |from, line| {
                let begin = *from;
                *from += line.len() + 1;
                (begin <= at).then_some(line)
            })
        };
        let line = line_of(at).last().unwrap_or_default().trim();
        let bare = |line: &'a str| line.split('#').next().unwrap_or_default().trim();
        let header = line_of(at).map(bare).filter(|line| line.starts_with('[')).last();
        Self { line, header }
    }

    fn table(&self) -> Option<&'a str> {
        self.header.map(|header| header.trim_matches(['[', ']']))
    }

    fn is_header(&self) -> bool {
        self.line.starts_with('[')
    }

    /// "link.mtu", "[[port]]"; empty where none can be seen.
    fn key(&self) -> String {
        if let Some(header) = self.header.filter(|_| self.is_header()) {
            return header.to_owned();
        }
        let key = self.line.split_once('=').map_or(self.line, |(key, _)| key).trim();
        let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match self.table() {
            _ if key.is_empty() || !key.bytes().all(is_bare) => String::new(),
            Some(table) => format!("{table}.{key}"),
            None => key.to_owned(),
        }
    }

    /// In front of what is said.
    fn prefix(&self) -> String {
        match self.key() {
            key if key.is_empty() => key,
            key => format!("{key}: "),
        }
    }

    /// It is no TOML.
    fn unreadable(&self, message: &str) -> String {
        if message == "duplicate key" {
            return format!("{} is given twice", self.key());
        }
        let prefix = if self.is_header() { String::new() } else { self.prefix() };
        let message = if self.lacks_quotes() { "a text stands in quotes" } else { message };
        format!("{prefix}{message}, in `{}`", shown(self.line))
    }

    /// Is the value a word, or begins as a number and goes on as a text?
    fn lacks_quotes(&self) -> bool {
        let Some((_, value)) = self.line.split_once('=') else { return false };
        let value = value.split('#').next().unwrap_or_default().trim();
        let is_truth = ["true", "false"].iter().any(|truth| value.eq_ignore_ascii_case(truth));
        let numeric = |byte: u8| byte.is_ascii_digit() || b"+-_.".contains(&byte);
        !value.starts_with(['"', '\'', '[', '{'])
            && !is_truth
            && value.bytes().any(|byte| !numeric(byte))
    }

    /// It is TOML, and not what a link is described by.
    fn unfit(&self, message: &str) -> String {
        if let Some(rest) = message.strip_prefix("unknown field ") {
            let (unknown, known) = rest.split_once(", expected ").unwrap_or((rest, ""));
            let known = known.trim_start_matches("one of ").replace('`', "");
            let kind = if self.is_header() { "table" } else { "key" };
            let place = match self.header {
                Some(header) if !self.is_header() => format!(" in {header}"),
                _ => String::new(),
            };
            return format!("unknown {kind} {unknown}{place}; there is {known}");
        }
        if let Some(missing) = message.strip_prefix("missing field ") {
            return format!("the table [{}] is missing", missing.replace('`', ""));
        }
        if message.ends_with("expected any valid TOML value") {
            return format!("{}the number is too large", self.prefix());
        }
        match message.split_once(", expected ") {
            Some((_, SEVERAL)) => {
                let name = self.table().filter(|_| self.is_header()).map(str::to_owned);
                let name = name.unwrap_or_else(|| self.key());
                format!(
                    "{}give [[{name}]], in double brackets: there may be several",
                    self.prefix()
                )
            }
            Some((_, expected)) => format!("{}give {expected}", self.prefix()),
            None => format!("{}{message}", self.prefix()),
        }
    }
}

/// Of a file that may be anything.
fn shown(line: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let mut shown: String = line.chars().take(SHOWN_CHARS).map(printable).collect();
    if line.chars().count() > SHOWN_CHARS {
        shown.push_str("...");
    }
    shown
}
