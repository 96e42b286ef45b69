//! `[etcd]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::{Spanned, Value};
use vsnoop_config::Reader as _;

use super::peer::PeerTable;
use super::reader::{Field, Reader, Result};
use crate::config::content_error::ContentError;
use crate::config::{EtcdConfig, value};
use vsnoop_etcd::{Endpoint, NoEndpoint};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "one table, [etcd]")]
pub(super) struct EtcdTable {
    pub(super) endpoints: Field,
    pub(super) ca: Field,
    pub(super) cert: Field,
    pub(super) key: Field,
    pub(super) user: Field,
    pub(super) password: Field,
    pub(super) prefix: Field,
    pub(super) name: Field,
    pub(super) address: Field,
    pub(super) ttl: Field,
    pub(super) grace: Field,
    pub(super) peer: Option<Spanned<PeerTable>>,
}

impl Reader<'_> {
    pub(super) fn read_etcd(&self, table: &Spanned<EtcdTable>) -> Result<EtcdConfig> {
        let etcd = table.get_ref();
        let here = table.span().start;
        let endpoints = self.read_endpoints(&etcd.endpoints, here)?;
        let ca = self.read_path("etcd.ca", &etcd.ca)?;
        let is_encrypted = endpoints.iter().any(|endpoint| endpoint.is_encrypted);
        if is_encrypted != ca.is_some() {
            return Err(self.at(here, ContentError::EtcdAuthority));
        }
        let identity = self.etcd_identity(etcd, is_encrypted, here)?;
        let login = self.etcd_login(etcd, here)?;
        let empty = PeerTable::default();
        let peer = etcd.peer.as_ref().map_or(&empty, |peer| peer.get_ref());
        if let Some((found, key)) = [
            (&peer.name, "name"),
            (&peer.key, "key"),
            (&peer.subject, "subject"),
            (&peer.address, "address"),
        ]
        .into_iter()
        .find_map(|(field, key)| Some((field.as_ref()?, key)))
        {
            let allowed = "is each host's own, which etcd says";
            return Err(self.wrong(&format!("etcd.peer.{key}"), found, allowed));
        }
        Ok(EtcdConfig {
            endpoints,
            ca,
            identity,
            login,
            prefix: self
                .read_text("etcd.prefix", &etcd.prefix, value::etcd_prefix)?
                .unwrap_or_else(|| "/vsnoop/".to_owned()),
            name: self.read_text("etcd.name", &etcd.name, value::parse_name)?,
            addresses: self.read_addresses("etcd.address", &etcd.address)?,
            ttl: self.read_time("etcd.ttl", &etcd.ttl, 5, 3600)?.unwrap_or(Duration::from_secs(30)),
            grace: self
                .read_time("etcd.grace", &etcd.grace, 0, 86_400)?
                .unwrap_or(Duration::from_secs(3600)),
            template: self.read_template(peer)?,
        })
    }

    /// Files of certificate and key.
    fn etcd_identity(
        &self,
        etcd: &EtcdTable,
        is_encrypted: bool,
        here: usize,
    ) -> Result<Option<(PathBuf, PathBuf)>> {
        match (self.read_path("etcd.cert", &etcd.cert)?, self.read_path("etcd.key", &etcd.key)?) {
            (Some(cert), Some(key)) if is_encrypted => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => Err(self.at(here, ContentError::EtcdIdentity)),
        }
    }

    /// User, and the file of the password.
    fn etcd_login(&self, etcd: &EtcdTable, here: usize) -> Result<Option<(String, PathBuf)>> {
        let user = self.read_text("etcd.user", &etcd.user, value::parse_name)?;
        match (user, self.read_path("etcd.password", &etcd.password)?) {
            (Some(user), Some(password)) => Ok(Some((user, password))),
            (None, None) => Ok(None),
            _ => Err(self.at(here, ContentError::EtcdLogin)),
        }
    }

    fn read_endpoints(&self, field: &Field, here: usize) -> Result<Vec<Endpoint>> {
        let Some(found) = field else {
            return Err(self.at(here, ContentError::NoEndpoints));
        };
        let one = |value: &Value| {
            let read = value.as_str().map_or(Err(NoEndpoint), str::parse);
            read.map_err(|why| self.wrong("etcd.endpoints", found, why))
        };
        match found.get_ref() {
            Value::Array(values) if !values.is_empty() => values.iter().map(one).collect(),
            value => Ok(vec![one(value)?]),
        }
    }
}
