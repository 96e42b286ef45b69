//! The last step: conditions between tables.

use std::collections::HashMap;

use super::document::ConfigFile;
use super::peer::PeerTable;
use super::reader::{Reader, Result};
use crate::config::{Config, Divert, PeerConfig, PeerTemplate, Transport, TrustConfig};

impl Reader<'_> {
    /// Checks conditions between tables.
    pub(super) fn whole(&self, document: &ConfigFile, config: &Config) -> Result<()> {
        let here = document.link.span().start;
        if config.peers.is_empty() && config.etcd.is_none() {
            return Err(self.complaint(here, "a link needs at least one [[peer]], or [etcd]"));
        }
        if config.ports.is_empty() && config.diverts.is_empty() && config.local.is_empty() {
            let what = "a link needs at least one [[port]] or [[divert]], or link.local";
            return Err(self.complaint(here, what));
        }
        self.diverted(document, config)?;
        for (table, peer) in document.peer.iter().zip(&config.peers) {
            let PeerConfig { via, relay, transport, .. } = peer;
            self.behind(table.get_ref(), via.as_deref(), *relay, *transport, config)?;
        }
        if let (Some(etcd), Some(table)) = (&config.etcd, &document.etcd)
            && let Some(table) = &table.get_ref().peer
        {
            let PeerTemplate { via, relay, transport, .. } = &etcd.template;
            self.behind(table.get_ref(), via.as_deref(), *relay, *transport, config)?;
        }
        for (table, peer) in document.peer.iter().zip(&config.peers) {
            if matches!(peer.trust, TrustConfig::Subject(_)) && config.authority.is_none() {
                let what =
                    format!("peer {} has a subject, which needs link.cert and link.ca", peer.name);
                return Err(self.complaint(table.span().start, what));
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
    fn behind(
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
    fn diverted(&self, document: &ConfigFile, config: &Config) -> Result<()> {
        let mut seen = HashMap::new();
        for (table, divert) in document.divert.iter().zip(&config.diverts) {
            let Divert { interface, prefixes, .. } = divert;
            let here = table.span().start;
            if divert.sources.addresses.is_empty() {
                let what = "a [[divert]] needs an address, or link.local: the sources that the VM may \
                            use, since no firewall of this host sees diverted packets";
                return Err(self.complaint(here, what));
            }
            if config.ports.iter().any(|port| port.name == *interface) {
                let what = format!(
                    "interface {interface} is a [[port]], by which all its frames go through the link: \
                     leave out one of both"
                );
                return Err(self.complaint(here, what));
            }
            for prefix in prefixes {
                if let Some(first) = seen.insert((interface, prefix), here) {
                    let what = format!(
                        "prefix {prefix} of interface {interface} is diverted already (the [[divert]] of \
                         line {}); leave out one of both",
                        self.line(first)
                    );
                    return Err(self.complaint(here, what));
                }
                if let Some(own) = config.local.iter().find(|own| own.contains(prefix)) {
                    let what = format!(
                        "prefix {prefix} is in {own} of link.local, which is of VMs of this host; give one \
                         that is behind the peer"
                    );
                    return Err(self.complaint(here, what));
                }
            }
        }
        Ok(())
    }
}
