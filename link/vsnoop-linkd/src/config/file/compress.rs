//! `[[compress]]`.

use serde::Deserialize;
use toml::Spanned;
use vsnoop_config::Reader as _;

use super::reader::{Field, Reader, Result};
use crate::config::content_error::ContentError;
use crate::config::{Compress, EtcdConfig, PeerConfig, Rules, Selector, value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct CompressTable {
    pub(super) peer: Field,
    pub(super) port: Field,
    pub(super) vm: Field,
    pub(super) prefix: Field,
    pub(super) method: Field,
    pub(super) owner: Field,
    pub(super) dictionary: Field,
}

impl Reader<'_> {
    pub(super) fn read_compress(
        &self,
        tables: &[Spanned<CompressTable>],
        peers: &[PeerConfig],
        etcd: Option<&EtcdConfig>,
    ) -> Result<Rules> {
        let rules =
            tables.iter().map(|table| self.read_rule(table, peers, etcd)).collect::<Result<_>>()?;
        Rules::new(rules)
            .map_err(|error| self.at(tables.last().map_or(0, |table| table.span().start), error))
    }

    fn read_rule(
        &self,
        table: &Spanned<CompressTable>,
        peers: &[PeerConfig],
        etcd: Option<&EtcdConfig>,
    ) -> Result<Compress> {
        let rule = table.get_ref();
        let peer = self.known_peer("compress.peer", &rule.peer, peers, etcd)?;
        let method = self.read_text("compress.method", &rule.method, str::parse)?;
        let read = Compress {
            selector: Selector {
                peer,
                port: self.read_text("compress.port", &rule.port, value::parse_interface)?,
                vm: self.read_text("compress.vm", &rule.vm, str::parse)?,
                prefixes: self.read_prefixes("compress.prefix", &rule.prefix)?,
            },
            method: method.ok_or_else(|| self.at(table.span().start, ContentError::NoMethod))?,
            owner: self.read_text("compress.owner", &rule.owner, value::parse_name)?,
            dictionary_bytes: self.read_text(
                "compress.dictionary",
                &rule.dictionary,
                value::parse_dictionary,
            )?,
        };
        let mut all = peers.to_vec();
        let name = read.selector.peer.as_deref().unwrap_or_default();
        all.extend(etcd.map(|etcd| etcd.template.make_peer(name, Vec::new(), Vec::new())));
        match (read.check_dictionary(&all), &rule.dictionary) {
            (Err(allowed), Some(found)) => Err(self.wrong("compress.dictionary", found, allowed)),
            _ => Ok(read),
        }
    }
}
