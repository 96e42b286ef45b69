//! Carriers: programs that carry a guest's packets from one host to the other, vsnoop's link and
//! what a user would take instead.
//!
//! A [`Carrier`] is started on two hosts of a [`Network`](vsnoop_testbed::hosts::Network) and
//! becomes a [`RunningCarrier`]: two ends between which connections can be made, and the processes
//! that carry them. Several run side by side, each with its own ports, devices and addresses
//! ([`Site`]), so that measurements can alternate. A tunnel's device with its address is in the
//! host's namespace, where a guest's tap would be. carriers.toml declares all of them.

mod carrier;
mod ends;
mod process;
mod side;
mod site;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

pub use carrier::{Carrier, Kind, all};
pub use ends::Ends;
use process::Processes;
pub use side::HostSide;
pub use site::Site;

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
        let ends = carrier.start(&mut site)?;
        if ends.forwarded_from.is_none() {
            site.until("echo", || Ok(ends.client.ping(ends.address, 1).is_ok()))?;
        }
        Ok(Self { port: site.port(), processes: site.into_processes(), carrier, ends })
    }

    /// Where a server is to listen.
    pub fn listen_port(&self) -> u16 {
        self.port + site::SERVER
    }

    /// Where a client finds it.
    pub fn connect_address(&self) -> SocketAddr {
        match self.ends.forwarded_from {
            Some(port) => (Ipv4Addr::LOCALHOST, port).into(),
            None => (self.ends.address, self.listen_port()).into(),
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

/// Finds a carrier by its name.
pub fn find(name: &str) -> Option<&'static Carrier> {
    all().iter().find(|carrier| carrier.name == name)
}

/// Where a carrier stands in tables.
pub fn place(name: &str) -> Option<usize> {
    all().iter().position(|carrier| carrier.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_carrier_has_a_name_of_its_own() {
        let names: BTreeSet<_> = all().iter().map(|carrier| &carrier.name).collect();
        assert_eq!(names.len(), all().len());
    }
}
