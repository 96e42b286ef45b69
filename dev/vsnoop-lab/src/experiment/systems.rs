//! Guests made of packages, and what runs in them.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use vsnoop_guest::control::{Command, Reply};
use vsnoop_testbed::guest::System;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::vm::Vm;
use vsnoop_testbed::wait::wait_until;

/// A service under emulation, with a quota, on a busy host.
const READY_LIMIT: Duration = Duration::from_secs(120);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Reads the file of a system (`systems/NAME.toml`).
pub fn parse(text: &str) -> Result<System> {
    toml::from_str(text).context("the file of a guest system")
}

/// A server in a guest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub name: String,
    /// A shell script, which may go on for ever.
    pub start: String,
    pub port: u16,
}

impl Service {
    /// Starts it, and waits until it takes connections from the client.
    pub fn start(&self, vm: &Vm, client: &Netns, address: Ipv4Addr) -> Result<()> {
        let name = &self.name;
        vm.command(&Command::Start { name: name.clone(), script: self.start.clone() })?;
        let server = SocketAddr::from((address, self.port));
        let waited = wait_until(&format!("{name} takes connections"), READY_LIMIT, || {
            if let (Some(status), output) = ended(vm, name)?
                && status != 0
            {
                bail!("{name} ended with status {status}: {output}");
            }
            client.run(|| Ok(TcpStream::connect_timeout(&server, CONNECT_LIMIT).is_ok()))
        });
        waited.with_context(|| format!("start {name} in {}", vm.name()))
    }
}

/// The status of a script in a guest, if it has ended, and its output.
pub fn ended(vm: &Vm, name: &str) -> Result<(Option<i32>, String)> {
    match vm.command(&Command::Ended { name: name.to_owned() })? {
        Reply::Ended { status, output } => Ok((status, output)),
        other => bail!("{} answered {other:?}", vm.name()),
    }
}
