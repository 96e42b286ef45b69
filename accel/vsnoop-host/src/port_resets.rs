//! Resets a connection at both ends: the decisions of `vsnoop_hold::reset`, at a port of this
//! host.

use vsnoop_bpf::types::{flow, flow_key, port_meta, reset_reason};
use vsnoop_bpf::{Hold, Port};
use vsnoop_hold::Reason;
use vsnoop_hold::detach_resets::OfDeletedTap;
use vsnoop_hold::reset::{self, Bridge, ResetOutcome, Way, WayToVm};

use crate::error::{Error, Result};
use crate::system::bridge::{Place, TapBridge};
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

/// Resets the connection of a hold that the engine gives up, as [`reset::reset_held_flow`] does.
/// `netns`: as of [`reset`].
pub fn reset_held_flow(
    port: &Port,
    netns: Option<&Netns>,
    hold: &Hold,
    reason: Reason,
) -> Result<ResetOutcome> {
    let now_ns = monotonic_ns()?;
    let tell = |_: &mut &Port, key: &flow_key, flow: &flow| tell(port, netns, key, flow);
    Ok(reset::reset_held_flow(&mut { port }, hold, reason, now_ns, tell)?)
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

/// Sends the RST to both ends ([`reset::send`]). Returns whether the sender's has
/// left. The calling thread must be in the tap's network namespace.
pub fn send(port: &Port, key: &flow_key, flow: &flow) -> bool {
    let to_vm = way_to_vm(port, key).unwrap_or(WayToVm::Tap);
    reset::send(&mut { port }, key, flow, to_vm, way_to_sender(port, key, flow))
}

/// Repeats the RSTs of a connection that was reset, and probes its ends ([`reset::probe`]). The
/// calling thread must be in the tap's network namespace.
pub fn repeat(port: &Port, key: &flow_key, flow: &flow) {
    let to_vm = way_to_vm(port, key).unwrap_or(WayToVm::Tap);
    let to_sender = way_to_sender(port, key, flow);
    reset::send(&mut { port }, key, flow, to_vm, to_sender);
    reset::probe(&mut { port }, key, flow, to_vm, to_sender);
}

/// Behind the tap, or another port of its bridge.
fn way_to_vm(port: &Port, key: &flow_key) -> Result<WayToVm> {
    let Some(bridge) = TapBridge::find_bridge(&port.meta()?)? else { return Ok(WayToVm::Tap) };
    let other = bridge.other_port(key.vm_mac, bridge.vlan(key))?;
    Ok(other.map_or(WayToVm::Tap, |port| WayToVm::Port(port, as_device(&bridge))))
}

/// The tap and its VM are gone: resets the senders of bytes that the VM had not acknowledged, and
/// those of connections that were reset, again. Returns how many of the first were sent a RST. The
/// calling thread must be in the tap's network namespace.
pub fn reset_senders(port: &Port) -> Result<usize> {
    let OfDeletedTap { behind, reset } = OfDeletedTap::among(port.flows()?);
    send_to_senders(port, &reset);
    Ok(send_to_senders(port, &behind))
}

/// Returns how many senders were sent a RST.
fn send_to_senders(port: &Port, flows: &[(flow_key, flow)]) -> usize {
    let is_sent = |(key, flow): &&(flow_key, flow)| {
        let way = way_to_sender(port, key, flow);
        reset::send_to_sender_without_answer(&mut { port }, key, flow, way)
    };
    flows.iter().filter(is_sent).count()
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
    if let Some(bridge) = TapBridge::find_bridge(&meta)? {
        let vlan = bridge.vlan(key);
        // A frame of the tap with the VM's address would teach the bridge that the VM is there.
        let has_moved = bridge.other_port(key.vm_mac, vlan)?.is_some();
        if !passes || has_moved {
            return over(&bridge, vlan, &meta, flow.next_hop, passes);
        }
    }
    Ok(match device {
        // The host takes frames of a routed tap also without a reader.
        Some(device) if device.up => Way::Tap,
        _ if flow.next_hop[..] == meta.mac[..6] => Way::Routed,
        _ => Way::None,
    })
}

/// The bridge drops frames of a tap without a reader (not `tap_passes`). It may have had the
/// address of the tap (a bridge has the lowest one of its ports), and another one since the tap was
/// deleted.
fn over(
    bridge: &TapBridge,
    vlan: u16,
    meta: &port_meta,
    next_hop: [u8; 6],
    tap_passes: bool,
) -> Result<Way> {
    let is_host = next_hop == bridge.mac
        || next_hop[..] == meta.mac[..6]
        || bridge.find(next_hop, vlan)? == Some(Place::Host);
    Ok(match as_device(bridge) {
        device if is_host => Way::UpFromBridge(device),
        // The bridge itself may be in no VLAN, or another.
        device if bridge.filters_vlans && tap_passes => Way::IntoBridge(device),
        device => Way::OutOfBridge(device),
    })
}

fn as_device(bridge: &TapBridge) -> Bridge {
    Bridge { ifindex: bridge.ifindex, mac: bridge.mac }
}
