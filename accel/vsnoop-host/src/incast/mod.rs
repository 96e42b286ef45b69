//! Incast control in the commands: the uplink of a port (`uplink`), its settings (`setting`) and
//! their defaults (`configured`), the interfaces of its packets (`ingress`), the state of uplinks
//! (`state`), the list of them (`listed`), and the windows of connections (`window`).

pub mod configured;
pub mod ingress;
pub mod listed;
mod reckoning;
pub mod setting;
pub mod state;
pub mod uplink;
pub mod window;

use vsnoop_bpf::types::flow;
use vsnoop_bpf::{Port, Uplink, UplinkId};

use crate::error::Result;
use crate::lock::CommandLock;
use crate::ports::{self, Attached};
use crate::system::netdev;
use crate::system::netns::Netns;

pub use setting::{Rate, buffer, rate};
pub use state::{UplinkControl, UplinkState};

/// Removes uplinks without ports. The lock keeps commands from attaching one meanwhile.
pub fn sweep(_lock: &CommandLock) -> Result<()> {
    if Uplink::are_any() { Ok(Uplink::sweep(&used()?)?) } else { Ok(()) }
}

/// Removes uplinks without ports, unless a command runs: for the helper.
pub fn sweep_if_idle() -> Result<()> {
    if !Uplink::are_any() {
        return Ok(());
    }
    let used = used()?;
    if Uplink::list()?.iter().all(|id| used.contains(id)) {
        return Ok(());
    }
    CommandLock::try_take()?.map_or(Ok(()), |lock| sweep(&lock))
}

/// Uplinks with ports. A damaged port, perhaps of another version, shows its network namespace in
/// the name of its pins, but not its uplink: it may have any uplink of that namespace.
fn used() -> Result<Vec<UplinkId>> {
    let inventory = ports::inventory()?;
    let behind: Vec<_> = inventory.ports.iter().map(uplink_id).collect();
    let damaged: Vec<_> = inventory
        .damaged
        .iter()
        .filter_map(|damaged| UplinkId::from_directory(&damaged.path))
        .collect();
    let is_used = |id: &UplinkId| {
        behind.contains(id) || damaged.iter().any(|damaged| damaged.netns == id.netns)
    };
    Ok(Uplink::list()?.into_iter().filter(is_used).collect())
}

/// The uplink of a port; interface 0 without one.
pub fn uplink_id(attached: &Attached) -> UplinkId {
    UplinkId { netns: attached.meta.netns, ifindex: attached.meta.uplink }
}

/// If the uplink or its hook is gone, gives windows back to the VMs. Returns a message, once.
pub fn notice_gone(attached: &Attached) -> Result<Option<String>> {
    let id = uplink_id(attached);
    if id.ifindex == 0 {
        return Ok(None);
    }
    let Some(uplink) = Uplink::open(id.netns, id.ifindex)? else { return Ok(None) };
    if uplink.has_hook() || uplink.state()?.rate == 0 {
        return Ok(None);
    }
    uplink.disable();
    let netns = Netns::find(id.netns);
    let device =
        netns.and_then(|netns| netns.run(|| netdev::find_index(id.ifindex)).ok()).flatten();
    let (name, control) = state::control(&uplink, &uplink.state()?, device.as_ref());
    Ok(state::trouble(&name, control))
}

/// A record of this port was removed: returns its credit.
pub fn forget(attached: &Attached, flow: &flow) -> Result<()> {
    if !flow.incast.is_shaped() {
        return Ok(());
    }
    if let Some(uplink) = Uplink::open(attached.meta.netns, attached.meta.uplink)? {
        uplink.forget(flow, &attached.port.incast()?);
    }
    Ok(())
}

/// The port is detached: returns the credit of its connections. No hook may use its records any
/// more.
pub fn forget_all(port: &Port) -> Result<()> {
    let meta = port.meta()?;
    if meta.uplink == 0 {
        return Ok(());
    }
    let Some(uplink) = Uplink::open(meta.netns, meta.uplink)? else { return Ok(()) };
    let share = port.incast()?;
    for (key, flow) in port.flows()?.iter().filter(|(_, flow)| flow.incast.is_shaped()) {
        // Only once, if this is interrupted and repeated.
        if port.delete_flow_if(key, |_| true)? {
            uplink.forget(flow, &share);
        }
    }
    Ok(())
}
