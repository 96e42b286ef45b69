//! All uplinks of the host with their ports, and the selection of one.

use std::collections::HashMap;

use serde::Serialize;
use vsnoop_bpf::{Error, Uplink, UplinkId};

use super::state::{UplinkControl, UplinkState};
use super::uplink_id;
use crate::error::{self, Result, Unfit, unfit, usage};
use crate::ports;
use crate::system::netdev;
use crate::system::netns::{self, Netns};

/// An uplink with incast control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedUplink {
    #[serde(flatten)]
    pub state: UplinkState,
    pub ifindex: u32,
    /// Inode of the network namespace.
    pub netns: u64,
    /// Argument of `--netns` for that namespace; null in the command's own, or if it has no name.
    pub netns_name: Option<String>,
    /// Names of the ports behind it.
    pub ports: Vec<String>,
}

/// Pins that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedUplink {
    pub path: String,
    pub reason: String,
}

#[derive(Debug, Default, Serialize)]
pub struct Uplinks {
    pub uplinks: Vec<ListedUplink>,
    pub damaged: Vec<DamagedUplink>,
}

impl ListedUplink {
    pub fn id(&self) -> UplinkId {
        UplinkId { netns: self.netns, ifindex: self.ifindex }
    }
}

/// All uplinks of the host.
pub fn all() -> Result<Uplinks> {
    let ports = ports::inventory()?.ports;
    let names = netns::names();
    let paths = netns::paths();
    let mut found = Uplinks::default();
    for id in Uplink::list()? {
        let uplink = match Uplink::open(id.netns, id.ifindex) {
            Ok(Some(uplink)) => uplink,
            // Detached meanwhile.
            Ok(None) => continue,
            Err(Error::Damaged { path, reason }) => {
                let (path, reason) = (path.display().to_string(), reason.to_string());
                found.damaged.push(DamagedUplink { path, reason });
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let behind = ports.iter().filter(|port| uplink_id(port) == id);
        found.uplinks.push(ListedUplink {
            state: UplinkState::read(&uplink, id, &mut paths.get(&id.netns).cloned())?,
            ifindex: id.ifindex,
            netns: id.netns,
            netns_name: name_of(id.netns, &names),
            ports: behind.map(|port| port.name.clone()).collect(),
        });
    }
    Ok(found)
}

fn name_of(netns: u64, names: &HashMap<u64, String>) -> Option<String> {
    names.get(&netns).filter(|name| !name.is_empty()).cloned()
}

/// The uplink of this name in `netns`; without a name the only one.
pub fn choose(
    uplinks: Vec<ListedUplink>,
    name: Option<&str>,
    netns: &Netns,
) -> Result<ListedUplink> {
    let (mut here, elsewhere): (Vec<_>, Vec<_>) =
        uplinks.into_iter().partition(|uplink| uplink.netns == netns.inode);
    let Some(name) = name else {
        return match here.len() {
            0 => Err(none(&elsewhere, netns)),
            1 => Ok(here.remove(0)),
            _ => Err(usage(format!(
                "several uplinks have incast control ({}): name one with --uplink",
                names(&here)
            ))),
        };
    };
    // A deleted uplink may have had the name of an existing one.
    here.sort_by_key(|uplink| uplink.state.state == UplinkControl::Gone);
    if let Some(at) = here.iter().position(|uplink| uplink.state.name == name) {
        return Ok(here.remove(at));
    }
    let is_there = netns.run(|| netdev::find(name))?.is_some();
    if here.is_empty() && is_there {
        return Err(none(&elsewhere, netns));
    }
    let (unfitness, what) = match is_there {
        true => (Unfit::NotAttached, "has no incast control"),
        false => (Unfit::NoPort, "does not exist"),
    };
    let label = netns.label();
    let others = match here.len() {
        0 => "`ip link` lists the devices".to_owned(),
        1 => format!("{} has incast control there", names(&here)),
        _ => format!("{} have incast control there", names(&here)),
    };
    let text = format!("uplink {name} {what} in the network namespace {label}; {others}");
    Err(unfit(unfitness, text))
}

fn none(elsewhere: &[ListedUplink], netns: &Netns) -> error::Error {
    let label = netns.label();
    let way = match elsewhere.first() {
        None => "`vsnoop attach PORT --incast` begins it".to_owned(),
        Some(other) => match &other.netns_name {
            Some(name) => format!("{} in {name} has it: add --netns {name}", other.state.name),
            None => format!("{} in another one has it", other.state.name),
        },
    };
    let text = format!("no uplink in the network namespace {label} has incast control; {way}");
    unfit(Unfit::NotAttached, text)
}

fn names(uplinks: &[ListedUplink]) -> String {
    let names: Vec<_> = uplinks.iter().map(|uplink| uplink.state.name.as_str()).collect();
    names.join(", ")
}
