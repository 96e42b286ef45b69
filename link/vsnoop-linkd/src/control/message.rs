//! Messages between command and link.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::status::Status;
use crate::config::{Compress, Method, RuleChange, Selector};

/// A request of the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status {
        /// Whether to list the learned addresses.
        addresses: bool,
    },
    Set(Set),
    /// Log from this level on.
    Log {
        level: LogLevel,
    },
    /// Read the configuration file again, and go on by it.
    Reload,
    /// End, after the answer.
    Down,
}

/// Changes which traffic is compressed, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Set {
    pub selector: Selector,
    pub method: Method,
    pub dictionary_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Error, "error"),
        (Self::Warn, "warn"),
        (Self::Info, "info"),
        (Self::Debug, "debug"),
        (Self::Trace, "trace"),
    ];
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(level, _)| level == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// A word that is no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use error, warn, info, debug or trace")]
pub struct BadLogLevel;

impl FromStr for LogLevel {
    type Err = BadLogLevel;

    fn from_str(word: &str) -> Result<Self, BadLogLevel> {
        let named = Self::ALL.iter().find(|(_, name)| *name == word);
        named.map(|(level, _)| *level).ok_or(BadLogLevel)
    }
}

/// The link's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    Status(Box<Status>),
    Done,
    /// The answer to [`Request::Set`].
    Set(RuleChange),
    /// The answer to [`Request::Reload`]: it has taken effect.
    Reloaded(Box<Reloaded>),
    /// The request was refused, for this reason.
    Refused {
        reason: String,
    },
}

/// The changes of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloaded {
    pub peers: Changes,
    pub ports: Changes,
    /// `[[divert]]` tables, as "INTERFACE to PEER".
    pub diverts: Changes,
    /// Other keys of the file that have another value now.
    pub changed: Vec<String>,
    /// Whether this host presents another key.
    pub key: bool,
    /// Whether it presents another certificate for the same key.
    pub certificate: bool,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Compression rules of `vsnoop link set` that have ended.
    pub ended: Vec<Compress>,
}

/// Names of what came, stayed with other settings, and went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}
