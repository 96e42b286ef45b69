//! Carriers: programs that carry a guest's packets from one host to the other, vsnoop's link and
//! what a user would take instead.
//!
//! A [`Carrier`] is started on two hosts of a [`Network`](vsnoop_testbed::hosts::Network) and
//! becomes a [`RunningCarrier`]: two ends between which connections can be made, and the processes
//! that carry them. Several run side by side, each with its own ports, devices and addresses
//! ([`Site`]), so that measurements can alternate. A tunnel's device with its address is in the
//! host's namespace, where a guest's tap would be. Every file has one program, with its default
//! settings as far as possible.

mod carrier;
mod ends;
mod fastd;
mod kernel;
mod nat;
mod openvpn;
mod process;
mod side;
mod site;
mod ssh;
mod star;
mod tinc;
mod vpncloud;
mod vsnoop;
mod vtun;
mod wireguard;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

pub use carrier::{Carrier, Kind};
pub use ends::Ends;
use process::Processes;
pub use side::HostSide;
pub use site::Site;
pub use star::Star;

/// A carrier that runs. Its processes end when it is dropped.
#[derive(Debug)]
pub struct RunningCarrier {
    processes: Processes,
    pub carrier: &'static Carrier,
    pub ends: Ends,
    port: u16,
}

impl RunningCarrier {
    /// Starts a carrier and waits until it carries.
    pub fn start(carrier: &'static Carrier, mut site: Site) -> Result<Self> {
        let ends = (carrier.start)(&mut site)?;
        if ends.forwarded_from.is_none() {
            site.until("echo", || Ok(ends.client.ping(ends.address, 1).is_ok()))?;
        }
        Ok(Self { port: site.port(), processes: site.into_processes(), carrier, ends })
    }

    /// Where a server is to listen.
    pub fn listen_address(&self) -> SocketAddr {
        (Ipv4Addr::UNSPECIFIED, self.port + site::SERVER).into()
    }

    /// Where a client finds it.
    pub fn connect_address(&self) -> SocketAddr {
        match self.ends.forwarded_from {
            Some(port) => (Ipv4Addr::LOCALHOST, port).into(),
            None => (self.ends.address, self.port + site::SERVER).into(),
        }
    }

    /// Whether echoes come back the same way as connections go.
    pub fn has_echo(&self) -> bool {
        self.ends.forwarded_from.is_none()
    }

    /// CPU time of all its processes, on both hosts, so far, in seconds.
    pub fn cpu_seconds(&self) -> Option<f64> {
        self.processes.cpu_seconds()
    }
}

/// All carriers, in the order of tables.
pub static ALL: [&Carrier; 28] = [
    &kernel::BARE,
    &kernel::BRIDGED,
    &kernel::VXLAN,
    &wireguard::KERNEL,
    &nat::SLIRP,
    &vtun::PLAIN,
    &vpncloud::PLAIN,
    &tinc::PLAIN,
    &fastd::PLAIN,
    &vpncloud::SEALED,
    &openvpn::UDP,
    &openvpn::TCP,
    &tinc::SEALED,
    &fastd::SEALED,
    &wireguard::GO,
    &ssh::TAP,
    &vtun::BBR,
    &vtun::ZLIB,
    &openvpn::LZ4,
    &ssh::COMPRESSED,
    &vsnoop::UDP_PLAIN,
    &vsnoop::UDP,
    &vsnoop::TLS,
    &vsnoop::UDP_AUTO,
    &vsnoop::TLS_AUTO,
    &vsnoop::TLS_DICTIONARY,
    &vsnoop::UDP_LZ4,
    &vsnoop::TLS_LZ4,
];

/// Finds a carrier by its name.
pub fn find(name: &str) -> Option<&'static Carrier> {
    ALL.iter().copied().find(|carrier| carrier.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_carrier_has_a_name_of_its_own() {
        let names: BTreeSet<_> = ALL.iter().map(|carrier| carrier.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
