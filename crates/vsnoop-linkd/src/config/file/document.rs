//! The first step: from TOML to tables with known keys, and errors about others.

use serde::Deserialize;
use toml::Spanned;

use super::compress::CompressTable;
use super::divert::DivertTable;
use super::etcd::EtcdTable;
use super::link::LinkTable;
use super::peer::PeerTable;
use super::port::PortTable;
use super::reader::{Reader, Result};
use crate::config::content_error::ContentError;

/// Characters of a line that an error shows.
const EXCERPT_CHARS: usize = 80;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub(super) link: Spanned<LinkTable>,
    #[serde(default)]
    pub(super) port: Vec<Spanned<PortTable>>,
    #[serde(default)]
    pub(super) peer: Vec<Spanned<PeerTable>>,
    #[serde(default)]
    pub(super) compress: Vec<Spanned<CompressTable>>,
    #[serde(default)]
    pub(super) divert: Vec<Spanned<DivertTable>>,
    pub(super) etcd: Option<Spanned<EtcdTable>>,
}

impl Reader<'_> {
    pub(super) fn document(&self) -> Result<ConfigFile> {
        toml::from_str(self.text).map_err(|error| {
            let names_link =
                |line: &str| line.trim_start_matches(['[', ' ', '\t']).starts_with("link");
            if !self.text.lines().any(names_link) {
                return self.at(0, ContentError::NoLinkTable);
            }
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
                return self.at(0, ContentError::Toml { message, excerpt: String::new() });
            };
            // The parser names the key in errors about unknown keys only, so the line is quoted.
            let line = self.text.lines().nth(self.line(span.start) - 1).unwrap_or_default().trim();
            self.at(span.start, ContentError::Toml { message, excerpt: excerpt(line) })
        })
    }
}

/// The beginning of a line, which may have any contents.
fn excerpt(line: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    line.chars().take(EXCERPT_CHARS).map(printable).collect()
}
