//! `[link]`: what is said once.

use std::net::SocketAddr;

use serde::Deserialize;
use toml::Spanned;
use vsnoop_config::Reader as _;

use super::reader::{Field, Reader, Result};
use crate::config::content_error::ContentError;
use crate::config::{AuthorityConfig, ValueError, value};
use vsnoop_link::handshake::MOST_TAKES;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "one table, [link]")]
pub(super) struct LinkTable {
    pub(super) name: Field,
    pub(super) network: Field,
    pub(super) listen: Field,
    pub(super) user: Field,
    pub(super) key: Field,
    pub(super) cert: Field,
    pub(super) ca: Field,
    pub(super) crl: Field,
    pub(super) mtu: Field,
    pub(super) threads: Field,
    pub(super) age: Field,
    pub(super) addresses: Field,
    pub(super) flood_rate: Field,
    #[serde(rename = "loop")]
    pub(super) loops: Field,
    pub(super) stp: Field,
    pub(super) clamp_mss: Field,
    pub(super) gso: Field,
    pub(super) relay: Field,
    pub(super) rekey: Field,
    pub(super) dead_after: Field,
    pub(super) local: Field,
}

impl Reader<'_> {
    /// The link is called as its file.
    pub(super) fn read_stem(&self) -> Result<String> {
        let stem = self.file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        value::parse_name(stem).map_err(|allowed| self.at(0, ContentError::FileName(allowed)))
    }

    pub(super) fn read_authority(
        &self,
        table: &Spanned<LinkTable>,
    ) -> Result<Option<AuthorityConfig>> {
        let link = table.get_ref();
        let lists = self.read_paths("link.crl", &link.crl)?;
        match (self.read_path("link.cert", &link.cert)?, self.read_path("link.ca", &link.ca)?) {
            (Some(cert), Some(ca)) => Ok(Some(AuthorityConfig { cert, ca, lists })),
            (None, None) if lists.is_empty() => Ok(None),
            (None, None) => {
                let offset = link.crl.as_ref().map_or(0, |found| found.span().start);
                Err(self.at(offset, ContentError::RevocationAlone))
            }
            _ => {
                let found = link.cert.as_ref().or(link.ca.as_ref());
                let offset = found.map_or(table.span().start, |found| found.span().start);
                Err(self.at(offset, ContentError::HalfAuthority))
            }
        }
    }

    /// The handshake tells a peer all of them.
    pub(super) fn read_local(&self, field: &Field) -> Result<Vec<ipnet::IpNet>> {
        let prefixes = self.read_prefixes("link.local", field)?;
        match field {
            Some(found) if prefixes.len() > MOST_TAKES => {
                let allowed = format!("give up to {MOST_TAKES} prefixes");
                Err(self.wrong("link.local", found, allowed))
            }
            _ => Ok(prefixes),
        }
    }
}

pub(super) fn parse_listen(text: &str) -> std::result::Result<SocketAddr, ValueError> {
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    address.ok_or(ValueError::Listen)
}
