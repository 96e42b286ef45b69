//! The last step: conditions between tables.

use std::collections::HashMap;

use vsnoop_config::Reader as _;

use super::document::ConfigFile;
use super::peer::PeerTable;
use super::reader::{Reader, Result};
use crate::config::content_error::ContentError;
use crate::config::{Config, Divert, PeerConfig, PeerTemplate, Transport, TrustConfig};

impl Reader<'_> {
    /// Checks conditions between tables.
    pub(super) fn check_whole(&self, document: &ConfigFile, config: &Config) -> Result<()> {
        let here = document.link.span().start;
        if config.peers.is_empty() && config.etcd.is_none() {
            return Err(self.at(here, ContentError::NoPeer));
        }
        if config.ports.is_empty() && config.diverts.is_empty() && config.local.is_empty() {
            return Err(self.at(here, ContentError::NoPort));
        }
        self.check_diverted(document, config)?;
        for (table, peer) in document.peer.iter().zip(&config.peers) {
            let PeerConfig { via, relay, transport, .. } = peer;
            self.check_behind(table.get_ref(), via.as_deref(), *relay, *transport, config)?;
        }
        if let (Some(etcd), Some(table)) = (&config.etcd, &document.etcd)
            && let Some(table) = &table.get_ref().peer
        {
            let PeerTemplate { via, relay, transport, .. } = &etcd.template;
            self.check_behind(table.get_ref(), via.as_deref(), *relay, *transport, config)?;
        }
        for (table, peer) in document.peer.iter().zip(&config.peers) {
            if matches!(peer.trust, TrustConfig::Subject(_)) && config.authority.is_none() {
                let error = ContentError::NoAuthority { peer: peer.name.clone() };
                return Err(self.at(table.span().start, error));
            }
        }
        for table in &document.compress {
            let Some(found) = &table.get_ref().port else { continue };
            let names: Vec<_> = config.port_names().map(String::as_str).collect();
            if !names.iter().any(|name| Some(*name) == found.get_ref().as_str()) {
                let allowed = format!("there is no such port; there is {}", names.join(", "));
                return Err(self.wrong("compress.port", found, allowed));
            }
        }
        Ok(())
    }

    /// A peer behind a hub is called by way of it; what both send each other is datagrams.
    fn check_behind(
        &self,
        table: &PeerTable,
        via: Option<&str>,
        relay: bool,
        transport: Transport,
        config: &Config,
    ) -> Result<()> {
        let (Some(found), Some(via)) = (&table.via, via) else { return Ok(()) };
        let wrong = |allowed: &str| Err(self.wrong("peer.via", found, allowed));
        let Some(hub) = config.peers.iter().find(|peer| peer.name == via) else {
            return wrong("give the name of the [[peer]] that is the hub");
        };
        if hub.via.is_some() {
            return wrong("a hub is not behind another");
        }
        if transport.is_ordered() || hub.transport.is_ordered() {
            return wrong("goes with transport udp only, of the hub as of the peer");
        }
        if table.address.is_some() {
            return wrong("the hub says where the peer is: leave out `address`");
        }
        if relay {
            return wrong("its hub relays for the peer: leave out `relay`");
        }
        Ok(())
    }

    /// Each prefix of an interface has one peer, and is not of this host.
    fn check_diverted(&self, document: &ConfigFile, config: &Config) -> Result<()> {
        let mut seen = HashMap::new();
        for (table, divert) in document.divert.iter().zip(&config.diverts) {
            let Divert { interface, prefixes, .. } = divert;
            let here = table.span().start;
            if divert.sources.addresses.is_empty() {
                return Err(self.at(here, ContentError::DivertSources));
            }
            if config.ports.iter().any(|port| port.name == *interface) {
                let interface = interface.clone();
                return Err(self.at(here, ContentError::DivertedPort { interface }));
            }
            for &prefix in prefixes {
                if let Some(first) = seen.insert((interface, prefix), here) {
                    let (interface, line) = (interface.clone(), self.line(first));
                    let error = ContentError::DivertedTwice { prefix, interface, line };
                    return Err(self.at(here, error));
                }
                if let Some(&own) = config.local.iter().find(|own| own.contains(&prefix)) {
                    return Err(self.at(here, ContentError::DivertedHere { prefix, own }));
                }
            }
        }
        Ok(())
    }
}
