//! Resets a connection at both ends: the decisions of `vsnoop_upkeep::reset`, at a port of this
//! host.

use vsnoop_bpf::types::{flow, flow_key, reset_reason};
use vsnoop_bpf::{Hold, Port};
use vsnoop_hold::Reason;
use vsnoop_upkeep::outstanding_bytes;
use vsnoop_upkeep::reset::{self, Bridge, GivenUp};
use vsnoop_upkeep::segment::frame_of_host;

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

/// [`send`] in this network namespace. A failure is not reported: the hooks send a RST later.
fn tell(port: &Port, netns: Option<&Netns>, key: &flow_key, flow: &flow) {
    let sent = match netns {
        Some(netns) => netns.run(|| {
            send(port, key, flow);
            Ok(())
        }),
        None => Err(Error::NoNetns),
    };
    if let Err(error) = sent {
        tracing::debug!("RSTs of {}: {error:#}", port.dir().display());
    }
}

/// Sends the RST to both ends, or repeats it ([`reset::send`]). The calling thread must be in the
/// tap's network namespace.
pub fn send(port: &Port, key: &flow_key, flow: &flow) {
    reset::send(&mut { port }, key, flow, bridge_without_reader(port));
}

/// The bridge of a tap without a reader.
fn bridge_without_reader(port: &Port) -> Option<Bridge> {
    find_bridge_without_reader(port).unwrap_or_default()
}

fn find_bridge_without_reader(port: &Port) -> Result<Option<Bridge>> {
    let device = netdev::find_index(port.meta()?.ifindex)?;
    let has_no_reader = device.is_none_or(|device| !device.carrier);
    if has_no_reader { bridge_of(port) } else { Ok(None) }
}

/// The bridge that the tap is a port of, or was.
fn bridge_of(port: &Port) -> Result<Option<Bridge>> {
    let ifindex = port.meta()?.bridge;
    // No port of a bridge.
    if ifindex == 0 {
        return Ok(None);
    }
    let bridge = netdev::find_index(ifindex)?;
    Ok(bridge.and_then(|bridge| Some(Bridge { ifindex: bridge.index, mac: bridge.mac? })))
}

/// The tap and its VM are gone: resets, over the bridge, the senders of bytes that the VM had not
/// acknowledged. Returns their number. The calling thread must be in the tap's network namespace.
pub fn reset_senders(port: &Port) -> Result<usize> {
    let flows = port.flows()?;
    let behind = flows.iter().filter(|(_, flow)| outstanding_bytes(flow) > 0);
    send_to_senders(port, behind)
}

/// Sends RSTs to the senders of these connections over the tap's bridge. Returns their number. The
/// calling thread must be in the tap's network namespace.
pub fn send_to_senders<'a>(
    port: &Port,
    flows: impl Iterator<Item = &'a (flow_key, flow)>,
) -> Result<usize> {
    let Some(Bridge { ifindex, mac }) = bridge_of(port)? else { return Ok(0) };
    let sent = flows.map(|(key, flow)| port.send_out_of(ifindex, &frame_of_host(key, flow, mac)));
    let told = |sent: &vsnoop_bpf::Result<()>| {
        if let Err(error) = sent {
            tracing::debug!("a RST to a sender: {error:#}");
        }
        sent.is_ok()
    };
    Ok(sent.filter(told).count())
}
