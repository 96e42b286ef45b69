//! Resets a connection at both ends: the decisions of `vsnoop_upkeep::reset`, at a port of this
//! host.

use vsnoop_bpf::types::{flow, flow_key, port_meta, reset_reason};
use vsnoop_bpf::{Hold, Port};
use vsnoop_hold::Reason;
use vsnoop_upkeep::reset::{self, Bridge, GivenUp, Way};
use vsnoop_upkeep::{Place, outstanding_bytes};

use crate::error::{Error, Result};
use crate::system::clock::monotonic_ns;
use crate::system::netdev;
use crate::system::netns::Netns;

/// Resets the connection at both ends and counts the reason; false if the VM has acknowledged
/// something since `flow` was read. `netns`: the tap's network namespace; without it the ends get
/// their RSTs from the hooks, at their next packet.
pub fn reset(
    port: &Port,
    netns: Option<&Netns>,
    key: &flow_key,
    flow: &flow,
    why: reset_reason::Type,
) -> Result<bool> {
    let now_ns = monotonic_ns()?;
    let tell = |_: &mut &Port, key: &flow_key, flow: &flow| tell(port, netns, key, flow);
    Ok(reset::reset(&mut { port }, key, flow, why, now_ns, tell)?)
}

/// The engine gives up the connection of this hold, as [`reset::give_up`] does. `netns`: as of
/// [`reset`].
pub fn give_up(port: &Port, netns: Option<&Netns>, hold: &Hold, reason: Reason) -> Result<GivenUp> {
    let now_ns = monotonic_ns()?;
    let tell = |_: &mut &Port, key: &flow_key, flow: &flow| tell(port, netns, key, flow);
    Ok(reset::give_up(&mut { port }, hold, reason, now_ns, tell)?)
}

/// [`send`] in this network namespace. After a failure the hooks send a RST later.
fn tell(port: &Port, netns: Option<&Netns>, key: &flow_key, flow: &flow) -> bool {
    let sent = match netns {
        Some(netns) => netns.run(|| Ok(send(port, key, flow))),
        None => Err(Error::NoNetns),
    };
    sent.unwrap_or_else(|error| {
        tracing::debug!("RSTs of {}: {error:#}", port.dir().display());
        false
    })
}

/// Sends the RST to both ends, or repeats it ([`reset::send`]). Returns whether the sender's has
/// left. The calling thread must be in the tap's network namespace.
pub fn send(port: &Port, key: &flow_key, flow: &flow) -> bool {
    let to_vm = find_vm(port, key).unwrap_or(Place::ToVm);
    reset::send(&mut { port }, key, flow, to_vm, way_to_sender(port, key, flow))
}

/// Where the VM is: behind the tap, or another port of its bridge.
fn find_vm(port: &Port, key: &flow_key) -> Result<Place> {
    let meta = port.meta()?;
    let Some(bridge) = bridge_of(&meta)? else { return Ok(Place::ToVm) };
    Ok(other_port(&bridge, &meta, key)?.map_or(Place::ToVm, Place::OutOf))
}

/// The tap and its VM are gone: resets the senders of bytes that the VM had not acknowledged.
/// Returns how many RSTs have left. The calling thread must be in the tap's network namespace.
pub fn reset_senders(port: &Port) -> Result<usize> {
    let flows = port.flows()?;
    let behind = flows.iter().filter(|(_, flow)| outstanding_bytes(flow) > 0);
    Ok(send_to_senders(port, behind))
}

/// Sends RSTs to the senders of these connections. Returns how many have left. The calling thread
/// must be in the tap's network namespace.
pub fn send_to_senders<'a>(
    port: &Port,
    flows: impl Iterator<Item = &'a (flow_key, flow)>,
) -> usize {
    let is_sent = |(key, flow): &&(flow_key, flow)| {
        reset::send_to_sender(&mut { port }, key, flow, way_to_sender(port, key, flow))
    };
    flows.filter(is_sent).count()
}

/// Where the VM's own segments went, by what passes them now.
fn way_to_sender(port: &Port, key: &flow_key, flow: &flow) -> Way {
    find_way(port, key, flow).unwrap_or_else(|error| {
        tracing::debug!("the way to a sender of {}: {error:#}", port.dir().display());
        Way::Tap
    })
}

fn find_way(port: &Port, key: &flow_key, flow: &flow) -> Result<Way> {
    let meta = port.meta()?;
    let device = netdev::find_index(meta.ifindex)?;
    let passes = device.as_ref().is_some_and(|device| device.carrier);
    if let Some(bridge) = bridge_of(&meta)?
        && (!passes || other_port(&bridge, &meta, key)?.is_some())
    {
        return over(bridge, &meta, flow.next_hop);
    }
    Ok(match device {
        // Of a routed tap the host takes frames also without a reader.
        Some(device) if device.up => Way::Tap,
        _ if flow.next_hop[..] == meta.mac[..6] => Way::Routed,
        _ => Way::None,
    })
}

/// The bridge drops frames of a tap without a reader. It may have had the address of the tap (a
/// bridge has the lowest one of its ports), and another one since the tap was deleted.
fn over(bridge: Bridge, meta: &port_meta, next_hop: [u8; 6]) -> Result<Way> {
    let is_host = next_hop == bridge.mac
        || next_hop[..] == meta.mac[..6]
        || netdev::find_in_bridge(bridge.ifindex, next_hop)? == Some(netdev::Place::Host);
    Ok(if is_host { Way::UpFromBridge(bridge) } else { Way::OutOfBridge(bridge) })
}

/// The port other than the tap where the bridge has learned the VM's address. A frame of the tap
/// with that address would teach it otherwise.
fn other_port(bridge: &Bridge, meta: &port_meta, key: &flow_key) -> Result<Option<u32>> {
    let place = netdev::find_in_bridge(bridge.ifindex, key.vm_mac)?;
    Ok(match place {
        Some(netdev::Place::Port(index)) if index != meta.ifindex => Some(index),
        _ => None,
    })
}

/// The bridge that the tap is a port of, or was.
fn bridge_of(meta: &port_meta) -> Result<Option<Bridge>> {
    // No port of a bridge.
    if meta.bridge == 0 {
        return Ok(None);
    }
    let bridge = netdev::find_index(meta.bridge)?;
    Ok(bridge.and_then(|bridge| Some(Bridge { ifindex: bridge.index, mac: bridge.mac? })))
}
