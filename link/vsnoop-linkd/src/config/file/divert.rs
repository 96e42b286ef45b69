//! `[[divert]]`.

use serde::Deserialize;
use toml::Spanned;
use vsnoop_config::Reader as _;

use super::reader::{Field, Reader, Result};
use crate::config::content_error::ContentError;
use crate::config::{Divert, EtcdConfig, PeerConfig, SourceFilter, ValueError, WhenDown, value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct DivertTable {
    pub(super) interface: Field,
    pub(super) prefix: Field,
    pub(super) peer: Field,
    pub(super) when_down: Field,
    pub(super) mac: Field,
    pub(super) address: Field,
}

impl Reader<'_> {
    pub(super) fn read_diverts(
        &self,
        tables: &[Spanned<DivertTable>],
        peers: &[PeerConfig],
        etcd: Option<&EtcdConfig>,
        local: &[ipnet::IpNet],
    ) -> Result<Vec<Divert>> {
        tables.iter().map(|table| self.read_divert(table, peers, etcd, local)).collect()
    }

    fn read_divert(
        &self,
        table: &Spanned<DivertTable>,
        peers: &[PeerConfig],
        etcd: Option<&EtcdConfig>,
        local: &[ipnet::IpNet],
    ) -> Result<Divert> {
        let divert = table.get_ref();
        let missing = |what: ContentError| self.at(table.span().start, what);
        let prefixes = self.read_prefixes("divert.prefix", &divert.prefix)?;
        if prefixes.is_empty() {
            return Err(missing(ContentError::DivertPrefix));
        }
        let interface =
            self.read_text("divert.interface", &divert.interface, value::parse_interface)?;
        let when_down =
            self.read_text("divert.when_down", &divert.when_down, |text| match text {
                "pass" => Ok(WhenDown::Pass),
                "drop" => Ok(WhenDown::Drop),
                _ => Err(ValueError::WhenDown),
            })?;
        let mut addresses = self.read_prefixes("divert.address", &divert.address)?;
        if addresses.is_empty() {
            addresses = local.to_vec();
        }
        let offset = divert.interface.as_ref().map_or(0, |found| found.span().start);
        Ok(Divert {
            place: self.place(offset),
            interface: interface.ok_or_else(|| missing(ContentError::DivertInterface))?,
            prefixes,
            peer: self
                .known_peer("divert.peer", &divert.peer, peers, etcd)?
                .ok_or_else(|| missing(ContentError::DivertPeer))?,
            when_down: when_down.unwrap_or(WhenDown::Pass),
            sources: SourceFilter {
                macs: self.read_macs("divert.mac", &divert.mac)?,
                addresses,
                // The hook diverts to prefixes, and broadcasts to none.
                is_dhcp_server: false,
            },
        })
    }
}
