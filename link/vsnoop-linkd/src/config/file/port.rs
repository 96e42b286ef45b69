//! `[[port]]`.

use std::collections::HashMap;

use serde::Deserialize;
use toml::Spanned;
use vsnoop_config::Reader as _;

use super::reader::{Field, Reader, Result};
use crate::config::content_error::{ContentError, Same};
use crate::config::{PORT_ADDRESSES, PortConfig, PortKind, SourceFilter, value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct PortTable {
    pub(super) name: Field,
    pub(super) bridge: Field,
    pub(super) tap: Field,
    pub(super) interface: Field,
    pub(super) mac: Field,
    pub(super) address: Field,
    pub(super) addresses: Field,
    pub(super) dhcp_server: Field,
}

impl Reader<'_> {
    pub(super) fn read_ports(
        &self,
        tables: &[Spanned<PortTable>],
        link: &str,
    ) -> Result<Vec<PortConfig>> {
        let ports =
            tables.iter().map(|table| self.read_port(table, link)).collect::<Result<Vec<_>>>()?;
        self.check_differ(
            tables,
            &ports,
            |port| Some(&port.name),
            |name| Same::PortName(name.clone()),
        )?;
        self.check_differ(
            tables,
            &ports,
            |port| match &port.kind {
                PortKind::Bridge(bridge) => Some(bridge),
                PortKind::Tap | PortKind::Interface => None,
            },
            |bridge| Same::Bridge(bridge.clone()),
        )?;
        self.fixed_once(tables, &ports)?;
        Ok(ports)
    }

    fn read_port(&self, table: &Spanned<PortTable>, link: &str) -> Result<PortConfig> {
        let port = table.get_ref();
        let name = self.read_text("port.name", &port.name, value::parse_interface)?;
        let bridge = self.read_text("port.bridge", &port.bridge, value::parse_interface)?;
        let tap = self.read_text("port.tap", &port.tap, value::parse_interface)?;
        let interface =
            self.read_text("port.interface", &port.interface, value::parse_interface)?;
        let sources = SourceFilter {
            macs: self.read_macs("port.mac", &port.mac)?,
            addresses: self.read_prefixes("port.address", &port.address)?,
            is_dhcp_server: self
                .read_truth("port.dhcp_server", &port.dhcp_server)?
                .unwrap_or(false),
        };
        let quota = self.read_number("port.addresses", &port.addresses, PORT_ADDRESSES)?;
        let quota = quota.map(|addresses| addresses as usize);
        let (own, kind) = match (bridge, tap, interface) {
            (Some(bridge), None, None) => {
                let name = match name {
                    Some(name) => name,
                    None => value::parse_interface(&format!("vsl-{link}")).map_err(|_| {
                        let error = ContentError::LongTap { link: link.to_owned() };
                        self.at(table.span().start, error)
                    })?,
                };
                let kind = PortKind::Bridge(bridge);
                return Ok(PortConfig { name, kind, sources, quota });
            }
            (None, Some(tap), None) => (tap, PortKind::Tap),
            (None, None, Some(interface)) => (interface, PortKind::Interface),
            _ => return Err(self.at(table.span().start, ContentError::PortKind)),
        };
        match port.name.as_ref() {
            Some(found) => Err(self.wrong("port.name", found, "goes with bridge only")),
            None => Ok(PortConfig { name: own, kind, sources, quota }),
        }
    }

    /// No MAC address is fixed to two ports.
    fn fixed_once(&self, tables: &[Spanned<PortTable>], ports: &[PortConfig]) -> Result<()> {
        let mut seen = HashMap::new();
        for (table, port) in tables.iter().zip(ports) {
            for mac in &port.sources.macs {
                if let Some(other) =
                    seen.insert(mac, &port.name).filter(|other| **other != port.name)
                {
                    let error = ContentError::SameMac { mac: *mac, port: other.clone() };
                    return Err(self.at(table.span().start, error));
                }
            }
        }
        Ok(())
    }
}
