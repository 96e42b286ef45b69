//! The attached ports of the host: look-up by name, and the processes that hold their taps.
//!
//! An attachment is identified by the inode of the network namespace and the interface's index; its
//! name is that of the tap when the helper last read it. A port whose tap was deleted is "gone":
//! only its pins are left, and every command that changes something detaches it first (`sweep`). A
//! port that is being detached is not listed (`detach`).

use std::collections::HashSet;

use serde::Serialize;
use vsnoop_bpf::types::{port_meta, port_run};
use vsnoop_bpf::{Damaged, Error, Listed, Port};

use crate::error::{Result, Unfit, unfit};
use crate::lock::CommandLock;
use crate::system::netns::{self, Netns};
use crate::system::{kernel, netdev};

/// One attachment, read once.
pub struct Attached {
    pub port: Port,
    pub meta: port_meta,
    pub name: String,
    pub state: AttachmentState,
    /// The helper has suspended it, whatever the operator's choice.
    pub suspended: bool,
    /// The service has paused it while its VM migrates, whatever the operator's choice.
    pub migrating: bool,
}

/// The operator's choice, or that the tap is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentState {
    Observing,
    Active,
    Paused,
    /// The tap does not exist any more.
    Gone,
}

/// The cause of a pause of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PausedBy {
    Operator,
    Helper,
    /// The service, while the VM migrates or is saved.
    Migration,
}

/// All attachments, and all damaged pins.
#[derive(Default)]
pub struct Inventory {
    pub ports: Vec<Attached>,
    pub damaged: Vec<Damaged>,
}

impl Attached {
    pub fn from_port(port: Port) -> vsnoop_bpf::Result<Self> {
        let meta = port.meta()?;
        let state = if port.hooks_are_off()? {
            AttachmentState::Gone
        } else {
            match port.policy()?.run {
                port_run::PORT_OBSERVE => AttachmentState::Observing,
                port_run::PORT_ACCELERATE => AttachmentState::Active,
                _ => AttachmentState::Paused,
            }
        };
        let (suspended, migrating) = (port.is_suspended()?, port.is_migrating()?);
        Ok(Self { name: port.ifname()?, meta, state, suspended, migrating, port })
    }

    /// The reason why the port does not acknowledge early; the operator's pause takes precedence.
    pub fn paused_by(&self) -> Option<PausedBy> {
        match self.state {
            AttachmentState::Paused => Some(PausedBy::Operator),
            AttachmentState::Active if self.migrating => Some(PausedBy::Migration),
            AttachmentState::Active if self.suspended => Some(PausedBy::Helper),
            _ => None,
        }
    }

    /// Its state as text, for tables and JSON.
    pub fn condition(&self) -> &'static str {
        match (self.state, self.paused_by()) {
            (AttachmentState::Observing, _) => "observing",
            (AttachmentState::Gone, _) => "gone",
            (_, Some(_)) => "paused",
            (_, None) => "active",
        }
    }

    /// The network namespace of the tap, if anything on the host still refers to it.
    pub fn netns(&self) -> Option<Netns> {
        Netns::find(self.meta.netns)
    }

    /// For messages: "vnet0", or "vnet0 (netns blue)" in another network namespace.
    pub fn label(&self) -> String {
        netns::label_of_port(self.meta.netns, &self.name)
    }
}

/// All attachments of the host, damaged ones apart.
pub fn inventory() -> Result<Inventory> {
    kernel::require()?;
    let mut inventory = Inventory::default();
    for listed in Port::list()? {
        match listed {
            Listed::Port(port) => match Attached::from_port(*port) {
                Ok(attached) => inventory.ports.push(attached),
                // Detached meanwhile.
                Err(Error::NotAttached(_)) => {}
                Err(Error::Damaged { path, reason }) => {
                    inventory.damaged.push(Damaged { path, reason });
                }
                Err(error) => return Err(error.into()),
            },
            Listed::Damaged(damaged) => inventory.damaged.push(damaged),
        }
    }
    Ok(inventory)
}

/// Is any port attached?
pub fn are_any() -> bool {
    inventory().is_ok_and(|found| !found.ports.is_empty())
        || Port::cut_short().is_ok_and(|found| !found.is_empty())
}

/// The attachments that the arguments select: the named ports in the namespace of `--netns` (or the
/// caller's own); without names all of that namespace, or of the whole host without `--netns`.
pub fn chosen(names: &[String], netns: Option<&str>) -> Result<Inventory> {
    if !names.is_empty() {
        let netns = Netns::chosen(netns)?;
        let ports =
            once_each(names).into_iter().map(|name| find(name, &netns)).collect::<Result<_>>()?;
        return Ok(Inventory { ports, damaged: Vec::new() });
    }
    let mut inventory = settled()?;
    if let Some(name) = netns {
        let inode = Netns::open(name)?.inode;
        inventory.ports.retain(|port| port.meta.netns == inode);
        inventory.damaged.clear();
    }
    Ok(inventory)
}

/// Removes duplicates.
pub fn once_each(names: &[String]) -> Vec<&String> {
    let mut seen = HashSet::new();
    names.iter().filter(|name| seen.insert(name.as_str())).collect()
}

/// Reads the [`inventory`], and damaged pins again under the lock of commands: a command may have
/// been creating them.
fn settled() -> Result<Inventory> {
    let first = inventory()?;
    if first.damaged.is_empty() {
        return Ok(first);
    }
    match CommandLock::take() {
        Ok(_lock) => inventory(),
        Err(_) => Ok(first),
    }
}

/// The attachment of port `name` in `netns`.
pub fn find(name: &str, netns: &Netns) -> Result<Attached> {
    kernel::require()?;
    let device = netns.run(|| netdev::find(name))?;
    if let Some(device) = &device {
        match Port::open(netns.inode, device.index).and_then(Attached::from_port) {
            // With its present name.
            Ok(attached) => return Ok(Attached { name: name.to_owned(), ..attached }),
            Err(Error::NotAttached(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // A tap that was renamed is found by its index above; one that was deleted only by its old
    // name.
    let (here, elsewhere): (Vec<_>, Vec<_>) = inventory()?
        .ports
        .into_iter()
        .filter(|port| port.name == name)
        .partition(|port| port.meta.netns == netns.inode);
    if let Some(port) = here.into_iter().next() {
        return Ok(port);
    }
    if let Some(port) = elsewhere.first() {
        let names = netns::names();
        let other = match names.get(&port.meta.netns).map(String::as_str) {
            Some("") => "the one of this command: leave --netns out".to_owned(),
            Some(name) => format!("{name}: add --netns {name}"),
            None => format!("the one with inode {}", port.meta.netns),
        };
        return Err(unfit(
            Unfit::NotAttached,
            format!(
                "port {name} is not attached in the network namespace {}, but one of that name is in {other}",
                netns.label()
            ),
        ));
    }
    if device.is_none() {
        return Err(netdev::does_not_exist(name, netns.label()));
    }
    Err(Error::NotAttached(name.to_owned()).into())
}
