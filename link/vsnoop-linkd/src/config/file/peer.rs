//! `[[peer]]`, and `[etcd.peer]`, which has a part of its keys.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use toml::{Spanned, Value};
use vsnoop_config::Reader as _;

use super::reader::{Field, Reader, Result};
use crate::config::content_error::{ContentError, Same};
use crate::config::value;
use crate::config::{
    AcceptConfig, CONNECTIONS, EtcdConfig, KEYS, OuterConfig, PeerConfig, PeerSource, PeerTemplate,
    Transport, TrustConfig, ValueError,
};
use vsnoop_link::compress::Codecs;
use vsnoop_link::identity::PublicKey;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct PeerTable {
    pub(super) name: Field,
    pub(super) key: Field,
    pub(super) subject: Field,
    pub(super) address: Field,
    pub(super) transport: Field,
    pub(super) connections: Field,
    pub(super) accept: Field,
    pub(super) accept_dictionary: Field,
    pub(super) dscp: Field,
    pub(super) ecn: Field,
    pub(super) flow_label: Field,
    pub(super) relay: Field,
    pub(super) via: Field,
}

impl Reader<'_> {
    pub(super) fn read_peers(&self, tables: &[Spanned<PeerTable>]) -> Result<Vec<PeerConfig>> {
        let peers = tables.iter().map(|table| self.read_peer(table)).collect::<Result<Vec<_>>>()?;
        self.check_differ(
            tables,
            &peers,
            |peer| Some(&peer.name),
            |name| Same::PeerName(name.clone()),
        )?;
        self.keys_differ(tables, &peers)?;
        self.check_differ(
            tables,
            &peers,
            |peer| match &peer.trust {
                TrustConfig::Subject(subject) => Some(subject),
                TrustConfig::Keys(_) => None,
            },
            |subject| Same::Subject(subject.clone()),
        )?;
        Ok(peers)
    }

    /// No key is of two peers, nor twice of one.
    fn keys_differ(&self, tables: &[Spanned<PeerTable>], peers: &[PeerConfig]) -> Result<()> {
        let mut seen = HashMap::new();
        for (table, peer) in tables.iter().zip(peers) {
            let TrustConfig::Keys(keys) = &peer.trust else { continue };
            let here = table.span().start;
            for key in keys {
                let Some(first) = seen.insert(key, here) else { continue };
                let line = self.line(first);
                return Err(self.at(here, ContentError::SameKey { line }));
            }
        }
        Ok(())
    }

    fn read_peer(&self, table: &Spanned<PeerTable>) -> Result<PeerConfig> {
        let peer = table.get_ref();
        let here = table.span().start;
        let name = self.read_text("peer.name", &peer.name, value::parse_name)?;
        let name = name.ok_or_else(|| self.at(here, ContentError::NamelessPeer))?;
        let keys = self.read_keys(&peer.key)?;
        let subject = self.read_text("peer.subject", &peer.subject, |text| {
            if value::is_host_name(text) { Ok(text.to_owned()) } else { Err(ValueError::Subject) }
        })?;
        let trust = match (keys, subject) {
            (Some(keys), None) => TrustConfig::Keys(keys),
            (None, Some(subject)) => TrustConfig::Subject(subject),
            _ => return Err(self.at(here, ContentError::PeerTrust { peer: name })),
        };
        let PeerTemplate { transport, connections, accept, outer, relay, via, .. } =
            self.read_template(peer)?;
        let addresses = self.read_addresses("peer.address", &peer.address)?;
        let source = PeerSource::File;
        Ok(PeerConfig {
            name,
            trust,
            source,
            addresses,
            transport,
            connections,
            accept,
            outer,
            relay,
            via,
        })
    }

    /// One public key, or a list of some.
    fn read_keys(&self, field: &Field) -> Result<Option<Vec<PublicKey>>> {
        const KEY: &str = "peer.key";
        let Some(found) = field else { return Ok(None) };
        let allowed = format!("give a public key, or a list of up to {KEYS}");
        let wrong = |why: &dyn fmt::Display| self.wrong(KEY, found, why);
        let one = |value: &Value| match value.as_str() {
            Some(text) => text.parse().map_err(|why| wrong(&why)),
            None => Err(wrong(&allowed)),
        };
        let keys = match found.get_ref() {
            Value::Array(values) => values.iter().map(one).collect::<Result<Vec<_>>>()?,
            value => vec![one(value)?],
        };
        if keys.is_empty() || keys.len() > KEYS { Err(wrong(&allowed)) } else { Ok(Some(keys)) }
    }

    /// Settings that peers may have in common.
    pub(super) fn read_template(&self, peer: &PeerTable) -> Result<PeerTemplate> {
        let transport = self.read_text("peer.transport", &peer.transport, parse_transport)?;
        let transport = transport.unwrap_or(Transport::Udp);
        let connections = self.read_number("peer.connections", &peer.connections, CONNECTIONS)?;
        if let Some(found) = peer.connections.as_ref().filter(|_| !transport.is_ordered()) {
            let allowed = format!("goes with tls only; the transport is {transport}");
            return Err(self.wrong("peer.connections", found, allowed));
        }
        Ok(PeerTemplate {
            transport,
            connections: connections.unwrap_or(4),
            accept: self.read_accept(peer)?,
            says_dictionary: peer.accept_dictionary.is_some(),
            outer: self.read_outer(peer, transport)?,
            relay: self.read_truth("peer.relay", &peer.relay)?.unwrap_or(self.relay),
            via: self.read_text("peer.via", &peer.via, value::parse_name)?,
        })
    }

    /// Connections have marks of their own.
    fn read_outer(&self, peer: &PeerTable, transport: Transport) -> Result<OuterConfig> {
        let truth = |key: &str, field: &Field| {
            let value = self.read_truth(key, field)?;
            match field {
                Some(found) if transport.is_ordered() => {
                    let allowed = format!("goes with udp only; the transport is {transport}");
                    Err(self.wrong(key, found, allowed))
                }
                _ => Ok(value),
            }
        };
        let default = OuterConfig::default();
        Ok(OuterConfig {
            dscp: truth("peer.dscp", &peer.dscp)?.unwrap_or(default.dscp),
            ecn: truth("peer.ecn", &peer.ecn)?.unwrap_or(default.ecn),
            flow_label: truth("peer.flow_label", &peer.flow_label)?.unwrap_or(default.flow_label),
        })
    }

    /// Limits in the peer's own table; rules may add a dictionary.
    fn read_accept(&self, peer: &PeerTable) -> Result<AcceptConfig> {
        let allowed = "give off, lz4 or zstd, or a list of lz4 and zstd";
        let codecs = |text: &str| match text {
            "off" => Some(Codecs::NONE),
            "lz4" => Some(Codecs { lz4: true, zstd: false }),
            "zstd" => Some(Codecs { lz4: false, zstd: true }),
            _ => None,
        };
        let listed = self.read_list("peer.accept", &peer.accept, codecs, allowed)?;
        let has = |codec: fn(&Codecs) -> bool| listed.is_empty() || listed.iter().any(codec);
        let codecs = Codecs { lz4: has(|codecs| codecs.lz4), zstd: has(|codecs| codecs.zstd) };
        let dictionary_bytes =
            self.read_text("peer.accept_dictionary", &peer.accept_dictionary, |text| match text {
                "off" => Ok(None),
                size => value::parse_dictionary(size).map(Some),
            })?;
        Ok(AcceptConfig { codecs, dictionary_bytes: dictionary_bytes.flatten() })
    }

    /// One of these, or with etcd any name: it may be known later.
    pub(super) fn known_peer(
        &self,
        key: &str,
        field: &Field,
        peers: &[PeerConfig],
        etcd: Option<&EtcdConfig>,
    ) -> Result<Option<String>> {
        self.read_text(key, field, |text| {
            if etcd.is_some() {
                return value::parse_name(text);
            }
            if peers.iter().any(|peer| peer.name == text) {
                return Ok(text.to_owned());
            }
            let names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
            Err(ValueError::Peer { names: names.join(", ") })
        })
    }
}

fn parse_transport(text: &str) -> std::result::Result<Transport, ValueError> {
    Transport::ALL
        .into_iter()
        .find(|transport| transport.name() == text)
        .ok_or(ValueError::Transport)
}
