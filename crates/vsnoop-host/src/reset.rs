//! Resets a connection at both ends: the decisions of `vsnoop_upkeep::reset`, at a port of this
//! host.

use vsnoop_bpf::types::{flow, flow_key, reset_reason};
use vsnoop_bpf::{Hold, Port};
use vsnoop_hold::Reason;
use vsnoop_upkeep::outstanding_bytes;
use vsnoop_upkeep::reset::{self, GivenUp};
use vsnoop_upkeep::segment::{Segment, frame};

use crate::error::Result;
use crate::system::clock::monotonic_ns;
use crate::system::netdev;

/// Resets the connection at both ends and counts the reason; false if the VM has acknowledged
/// something since `flow` was read. The calling thread must be in the tap's network namespace.
pub fn reset(port: &Port, key: &flow_key, flow: &flow, why: reset_reason::Type) -> Result<bool> {
    let now_ns = monotonic_ns()?;
    Ok(reset::reset(&mut { port }, key, flow, why, deserted_bridge(port), now_ns)?)
}

/// The engine gives up the connection of this hold, as [`reset::give_up`] does. The calling thread
/// must be in the tap's network namespace.
pub fn give_up(port: &Port, hold: &Hold, reason: Reason) -> Result<GivenUp> {
    let now_ns = monotonic_ns()?;
    Ok(reset::give_up(&mut { port }, hold, reason, deserted_bridge(port), now_ns)?)
}

/// Sends the RST to both ends, or repeats it ([`reset::send`]). The calling thread must be in the
/// tap's network namespace.
pub fn send(port: &Port, key: &flow_key, flow: &flow) {
    reset::send(&mut { port }, key, flow, deserted_bridge(port));
}

/// The bridge of a tap without a reader.
fn deserted_bridge(port: &Port) -> Option<u32> {
    find_deserted_bridge(port).unwrap_or_default()
}

fn find_deserted_bridge(port: &Port) -> Result<Option<u32>> {
    let meta = port.meta()?;
    let device = netdev::find_index(meta.ifindex)?;
    let is_deserted = device.is_none_or(|device| !device.carrier);
    Ok(Some(meta.bridge).filter(|bridge| is_deserted && *bridge != 0))
}

/// The tap and its VM are gone: resets, over the bridge, the senders of bytes that the VM had not
/// acknowledged. Returns their number. The calling thread must be in the tap's network namespace.
pub fn reset_senders(port: &Port) -> Result<usize> {
    let bridge = port.meta()?.bridge;
    if bridge == 0 {
        return Ok(0);
    }
    let reset = |(key, flow): &(flow_key, flow)| -> Result<()> {
        Ok(port.send_out_of(bridge, &frame(key, flow, Segment::ResetSender))?)
    };
    let flows = port.flows()?;
    let behind = flows.iter().filter(|(_, flow)| outstanding_bytes(flow) > 0);
    Ok(behind.map(reset).filter(Result::is_ok).count())
}
