//! VM ports whose new connections are left to the VM, because connections to them failed for a
//! reason of the host's own.
//!
//! The hooks, and user space when it resets a connection, count failures per port number of the VM
//! (`struct failures`, flow/types/port.h). After two within a minute, and for some seconds while a
//! listener takes no data, new connections to that port number go to BYPASS.

use serde::Serialize;
use vsnoop_bpf::Port;

use crate::error::Result;
use crate::system::clock::monotonic_ns;
use crate::units;

/// A port number of a VM whose new connections go to BYPASS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BypassedVmPort {
    pub vm_port: u16,
    /// Connections that failed, since the port was attached.
    pub failures: u32,
    /// For how long from now, ns.
    pub remaining_ns: u64,
}

impl BypassedVmPort {
    /// All of one port, sorted by number.
    pub fn list_bypassed(port: &Port) -> Result<Vec<Self>> {
        let now_ns = monotonic_ns()?;
        let found = port.bypassed_vm_ports(now_ns)?.into_iter().map(|(vm_port, failures)| Self {
            vm_port,
            failures: failures.total,
            remaining_ns: failures.until_ns - now_ns,
        });
        Ok(found.collect())
    }

    /// For people.
    pub fn describe_failure(&self) -> String {
        let why = match self.failures {
            0 => "its listener takes no data".to_owned(),
            count => format!("{} failed", units::plural(count.into(), "connection")),
        };
        format!(
            "new connections to port {} of the VM are left to the VM for {}: {why}",
            self.vm_port,
            units::duration(self.remaining_ns)
        )
    }
}
