//! [`Reader`]: reads the values of a link's tables that other files do not have; `vsnoop_config`
//! reads the others. An error says line, column, key, and what is allowed.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Spanned, Value};
use vsnoop_config::{Fault, Reader as _};

use crate::config::content_error::{ContentError, Same};
use crate::config::value;
use crate::config::{ADDRESSES, Address, ConfigError, ValueError};
use vsnoop_link::forwarding::Mac;

pub(super) use vsnoop_config::Field;

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// The text of a file, in which each value has a line.
pub(super) struct Reader<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    /// `link.relay`, for peers that do not say it themselves.
    pub(super) relay: bool,
}

impl vsnoop_config::Reader for Reader<'_> {
    type Error = ConfigError;

    fn contents(&self) -> &str {
        self.text
    }

    fn fault(&self, offset: usize, fault: Fault) -> ConfigError {
        self.at(offset, fault)
    }
}

impl Reader<'_> {
    /// The error at this offset of the text.
    pub(super) fn at(&self, offset: usize, error: impl Into<ContentError>) -> ConfigError {
        ConfigError::at(self.file, self.place(offset), error.into())
    }

    pub(super) fn line(&self, offset: usize) -> usize {
        self.place(offset).line
    }

    pub(super) fn read_time(
        &self,
        key: &str,
        field: &Field,
        least_s: u64,
        most_s: u64,
    ) -> Result<Option<Duration>> {
        let Some(found) = field else { return Ok(None) };
        let time = match found.get_ref() {
            Value::Integer(seconds) => u64::try_from(*seconds).ok().map(Duration::from_secs),
            Value::String(text) => value::parse_duration(text),
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
    pub(super) fn read_path(&self, key: &str, field: &Field) -> Result<Option<PathBuf>> {
        let directory = self.file.parent().unwrap_or(Path::new(""));
        self.read_text(key, field, |text| {
            if text.is_empty() { Err(ValueError::Path) } else { Ok(directory.join(text)) }
        })
    }

    /// One path, or a list.
    pub(super) fn read_paths(&self, key: &str, field: &Field) -> Result<Vec<PathBuf>> {
        let directory = self.file.parent().unwrap_or(Path::new(""));
        let path = |text: &str| (!text.is_empty()).then(|| directory.join(text));
        self.read_list(key, field, path, "give the path of a file, or a list of them")
    }

    /// One address, or a list of some.
    pub(super) fn read_addresses(&self, key: &str, field: &Field) -> Result<Vec<Address>> {
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
    pub(super) fn read_macs(&self, key: &str, field: &Field) -> Result<Vec<Mac>> {
        let mac = |text: &str| text.parse::<Mac>().ok().filter(|mac| !mac.is_group());
        let allowed = "give a MAC address such as \"52:54:00:00:00:01\", or a list of them";
        self.read_list(key, field, mac, allowed)
    }

    /// No two tables of a kind have the same value.
    pub(super) fn check_differ<T, U, V: Eq + Hash>(
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
