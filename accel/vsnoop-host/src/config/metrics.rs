//! `[metrics]`: where the service answers Prometheus.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use serde::Deserialize;
use vsnoop_config::{Field, Reader as _};

use super::reader::Reader;
use crate::error::Result;

/// Only programs of this host reach it. The ports 9100 to 9999 are taken by other exporters
/// (docs/decisions/0036-metrics.md).
pub const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 19755));

/// The table as the file has it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [metrics]")]
pub struct MetricsTable {
    listen: Field,
}

impl MetricsTable {
    /// Where to listen; `None`: nowhere.
    pub fn read(&self, reader: &Reader<'_>) -> Result<Option<SocketAddr>> {
        Ok(reader.read_text("metrics.listen", &self.listen, listen)?.unwrap_or(Some(LISTEN)))
    }
}

fn listen(text: &str) -> std::result::Result<Option<SocketAddr>, &'static str> {
    if text == "off" {
        return Ok(None);
    }
    let address = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    address.map(Some).ok_or(
        "give an address and a port such as \"127.0.0.1:19755\" or \"[::1]:19755\", or \"off\"",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_and_off_is_none() {
        assert_eq!(listen("off"), Ok(None));
        assert_eq!(listen("[::1]:9"), Ok("[::1]:9".parse().ok()));
        for wrong in ["", "on", "localhost:80", "127.0.0.1", "127.0.0.1:0", ":80", "::1:80x"] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
    }
}
