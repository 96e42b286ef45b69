//! The network of connections: a client, and a VM behind a port of the service.

use anyhow::Result;
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::topology::{PORT, Topology, TopologyOptions};

use super::daemon::{Apart, Daemon};

/// A network with an attached port, and the service that has attached it.
pub struct Rig<'a> {
    pub daemon: Daemon<'a>,
    pub topology: Topology,
}

impl<'a> Rig<'a> {
    /// `settings`: of the port's table.
    pub fn build(session: &mut Session, apart: &'a Apart, settings: &str) -> Result<Self> {
        let prefix = PREFIX.to_owned();
        let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
        let host = &topology.host;
        // `passive`: a namespace answers at once, which would be left to it.
        let text = format!("[[port]]\ninterface = \"{PORT}\"\npassive = false\n{settings}");
        let daemon = Daemon::start(session, apart, host, &text)?;
        daemon.until_active(1)?;
        Ok(Self { daemon, topology })
    }
}
