//! Hosts behind NATs.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::network::{MIDDLE, Network, to_host};
use super::plan::UPLINK;
use crate::net::Netns;

const INSIDE: &str = "inside";

/// How a NAT maps a port of the host behind it (RFC 4787, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nat {
    /// To the same port, for all destinations.
    PortPreserving,
    /// To a random one for each destination.
    Symmetric,
}

impl Network {
    /// The router of a host that is behind a NAT.
    pub fn router(&self, host: usize) -> Result<&Netns> {
        let name = self.net.name(&format!("n{host}"));
        let found = self.routers.iter().find(|router| router.name() == name);
        found.map(|router| &**router).with_context(|| format!("host {host} has no router"))
    }

    /// Puts a host behind a router of its own, which has the host's address from now on. It lets
    /// nothing in that the host has not asked for.
    pub fn put_behind_nat(&mut self, host: usize, nat: Nat) -> Result<()> {
        let router = self.namespace(&format!("n{host}"))?;
        let (outer, netns) = (self.plan.outside.address(host), &self.hosts[host].netns);
        let middle = self.middle()?;
        middle.delete(&to_host(host))?;
        middle.veth_port(MIDDLE, &to_host(host), &router, UPLINK)?;
        router.up_with(UPLINK, &[(outer, 24)])?;
        let [inner, own] = [1, 2].map(|last| Ipv4Addr::new(10, 66, host as u8, last));
        router.veth(INSIDE, netns, UPLINK)?;
        router.up_with(INSIDE, &[(inner.into(), 24)])?;
        netns.up_with(UPLINK, &[(own.into(), 24)])?;
        netns.ip(&format!("route add default via {inner}"))?;
        router.set_forwarding(true)?;
        let random = if nat == Nat::Symmetric { "fully-random" } else { "" };
        router.nft(&format!(
            "table ip nat {{\n\
             chain out {{\n\
             type nat hook postrouting priority srcnat; policy accept;\n\
             oifname {UPLINK} masquerade {random}\n\
             }}\n\
             chain in {{\n\
             type filter hook input priority 0; policy accept;\n\
             iifname {UPLINK} ct state new drop\n\
             }}\n\
             }}"
        ))?;
        self.routers.push(router);
        Ok(())
    }
}
