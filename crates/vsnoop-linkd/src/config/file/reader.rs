//! [`Reader`]: reads single values and lists of them, of any table. It knows where each stands,
//! so an error says line, key, and what is allowed.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Spanned, Value};

use crate::config::content_error::{ContentError, Same};
use crate::config::value;
use crate::config::{ADDRESSES, Address, ConfigError, ValueError};
use vsnoop_link::forwarding::Mac;

/// A value of any type, under a key that may be missing.
pub(super) type Field = Option<Spanned<Value>>;
pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// The text of a file, in which each value has a line.
pub(super) struct Reader<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    /// `link.relay`, for peers that do not say it themselves.
    pub(super) relay: bool,
}

impl Reader<'_> {
    /// The error at this offset of the text.
    pub(super) fn at(&self, offset: usize, error: impl Into<ContentError>) -> ConfigError {
        ConfigError::at(self.file, self.line(offset), error.into())
    }

    pub(super) fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    pub(super) fn wrong(
        &self,
        key: &str,
        found: &Spanned<Value>,
        allowed: impl fmt::Display,
    ) -> ConfigError {
        let error = ContentError::Value {
            key: key.to_owned(),
            found: shown(found.get_ref()),
            allowed: allowed.to_string(),
        };
        self.at(found.span().start, error)
    }

    pub(super) fn text<T, E: fmt::Display>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&str) -> std::result::Result<T, E>,
    ) -> Result<Option<T>> {
        let Some(found) = field else { return Ok(None) };
        match found.get_ref() {
            Value::String(text) => {
                read(text).map(Some).map_err(|allowed| self.wrong(key, found, allowed))
            }
            _ => Err(self.wrong(key, found, "give a text in quotes")),
        }
    }

    pub(super) fn number<T: TryFrom<i64> + PartialOrd + fmt::Display>(
        &self,
        key: &str,
        field: &Field,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<Option<T>> {
        let Some(found) = field else { return Ok(None) };
        let number = found.get_ref().as_integer().and_then(|number| T::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let allowed = format!("give a number from {} to {}", range.start(), range.end());
            self.wrong(key, found, allowed)
        })
    }

    pub(super) fn truth(&self, key: &str, field: &Field) -> Result<Option<bool>> {
        let Some(found) = field else { return Ok(None) };
        let truth = found.get_ref().as_bool();
        truth.map(Some).ok_or_else(|| self.wrong(key, found, "give true or false"))
    }

    pub(super) fn time(
        &self,
        key: &str,
        field: &Field,
        least_s: u64,
        most_s: u64,
    ) -> Result<Option<Duration>> {
        let Some(found) = field else { return Ok(None) };
        let time = match found.get_ref() {
            Value::Integer(seconds) => u64::try_from(*seconds).ok().map(Duration::from_secs),
            Value::String(text) => value::duration(text),
            _ => None,
        };
        let allowed = Duration::from_secs(least_s)..=Duration::from_secs(most_s);
        time.filter(|time| allowed.contains(time)).map(Some).ok_or_else(|| {
            let allowed =
                format!("give a time from {least_s} s to {most_s} s, such as \"300s\" or \"5m\"");
            self.wrong(key, found, allowed)
        })
    }

    /// Relative ones begin where the file is.
    pub(super) fn path(&self, key: &str, field: &Field) -> Result<Option<PathBuf>> {
        let directory = self.file.parent().unwrap_or(Path::new(""));
        self.text(key, field, |text| {
            if text.is_empty() { Err(ValueError::Path) } else { Ok(directory.join(text)) }
        })
    }

    /// One path, or a list.
    pub(super) fn paths(&self, key: &str, field: &Field) -> Result<Vec<PathBuf>> {
        let directory = self.file.parent().unwrap_or(Path::new(""));
        let path = |text: &str| (!text.is_empty()).then(|| directory.join(text));
        self.list(key, field, path, "give the path of a file, or a list of them")
    }

    /// One address, or a list of some.
    pub(super) fn addresses(&self, key: &str, field: &Field) -> Result<Vec<Address>> {
        let Some(found) = field else { return Ok(Vec::new()) };
        let wrong = |why: &dyn fmt::Display| self.wrong(key, found, why);
        let allowed = format!("give an address, or a list of up to {ADDRESSES}");
        let one = |value: &Value| match value.as_str() {
            Some(text) => text.parse().map_err(|why: ValueError| wrong(&why)),
            None => Err(wrong(&allowed)),
        };
        match found.get_ref() {
            Value::Array(values) if values.is_empty() || values.len() > ADDRESSES => {
                Err(wrong(&allowed))
            }
            Value::Array(values) => values.iter().map(one).collect(),
            value => Ok(vec![one(value)?]),
        }
    }

    /// One, or a list.
    pub(super) fn macs(&self, key: &str, field: &Field) -> Result<Vec<Mac>> {
        let mac = |text: &str| text.parse::<Mac>().ok().filter(|mac| !mac.is_group());
        let allowed = "give a MAC address such as \"52:54:00:00:00:01\", or a list of them";
        self.list(key, field, mac, allowed)
    }

    /// One, or a list.
    pub(super) fn prefixes(&self, key: &str, field: &Field) -> Result<Vec<ipnet::IpNet>> {
        let prefix = |text: &str| {
            let ip = || text.parse::<std::net::IpAddr>().ok().map(ipnet::IpNet::from);
            text.parse::<ipnet::IpNet>().ok().or_else(ip).map(|prefix| prefix.trunc())
        };
        let allowed =
            "give a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\", or a list of them";
        self.list(key, field, prefix, allowed)
    }

    /// One text, or an array of at least one.
    pub(super) fn list<T>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&str) -> Option<T>,
        allowed: &str,
    ) -> Result<Vec<T>> {
        let Some(found) = field else { return Ok(Vec::new()) };
        let read = |value: &Value| read(value.as_str()?);
        let all: Option<Vec<T>> = match found.get_ref() {
            Value::Array(values) => values.iter().map(read).collect(),
            value => read(value).map(|one| vec![one]),
        };
        all.filter(|all| !all.is_empty()).ok_or_else(|| self.wrong(key, found, allowed))
    }

    /// No two tables of a kind have the same value.
    pub(super) fn differ<T, U, V: Eq + Hash>(
        &self,
        tables: &[Spanned<T>],
        read: &[U],
        value: impl Fn(&U) -> Option<&V>,
        same: impl Fn(&V) -> Same,
    ) -> Result<()> {
        let mut seen = HashMap::new();
        for (index, item) in read.iter().enumerate() {
            let Some(value) = value(item) else { continue };
            if let Some(first) = seen.insert(value, index) {
                let offset = tables[index].span().start;
                let line = self.line(tables[first].span().start);
                return Err(self.at(offset, ContentError::Twice { same: same(value), line }));
            }
        }
        Ok(())
    }
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
