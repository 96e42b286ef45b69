//! The first step: the tables and what a file without `[link]` is told.

use serde::Deserialize;
use toml::Spanned;
use vsnoop_config::Reader as _;

use super::compress::CompressTable;
use super::divert::DivertTable;
use super::etcd::EtcdTable;
use super::link::LinkTable;
use super::peer::PeerTable;
use super::port::PortTable;
use super::reader::{Reader, Result};
use crate::config::content_error::ContentError;

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
    pub(super) fn read_tables(&self) -> Result<ConfigFile> {
        self.read_document().map_err(|error| {
            let names_link =
                |line: &str| line.trim_start_matches(['[', ' ', '\t']).starts_with("link");
            match self.text.lines().any(names_link) {
                true => error,
                false => self.at(0, ContentError::NoLinkTable),
            }
        })
    }
}
