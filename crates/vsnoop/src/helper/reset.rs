//! Ending a connection at both ends.
//!
//! Should a RST be lost or meet a receiver that is further on, the record stays as a tombstone and
//! whatever either end sends next is answered with RST.

use anyhow::Result;
use vsnoop_bpf::types::{flow, flow_key, reset_reason};
use vsnoop_bpf::{Port, bytes_owed};

use super::frame::{Segment, frame};
use crate::system::clock::monotonic_ns;
use crate::system::netdev;

/// Resets the connection at both ends and counts why; false when the VM has acknowledged something
/// since `flow` was read. The calling thread must be in the tap's network namespace.
pub fn reset(port: &Port, key: &flow_key, flow: &flow, why: reset_reason::Type) -> Result<bool> {
    if !port.mark_reset(key, flow, monotonic_ns()?)? {
        return Ok(false);
    }
    send(port, key, flow);
    port.count_reset(why, 1, bytes_owed(flow))?;
    if is_of_the_host(why) {
        port.note_failure(u16::from_be(key.vm_port), monotonic_ns()?)?;
    }
    Ok(true)
}

/// Might the connection have done well without vsnoop? Not when its VM has gone.
fn is_of_the_host(why: reset_reason::Type) -> bool {
    use reset_reason::{RESET_ENGINE_GONE, RESET_REFUSED, RESET_SILENT};
    matches!(why, RESET_REFUSED | RESET_SILENT | RESET_ENGINE_GONE)
}

/// Sends the RST to both ends, also again: one may be lost like any segment, and an end that only
/// reads would wait for ever. A frame that cannot be sent is made up for by the tombstone.
///
/// What comes from a tap that nobody reads is dropped by a bridge: then the sender is told over the
/// bridge itself.
pub fn send(port: &Port, key: &flow_key, flow: &flow) {
    let bridge = deserted_bridge(port).unwrap_or_default();
    for segment in [Segment::ResetVm, Segment::ResetSender] {
        let frame = frame(key, flow, segment);
        let sent = match bridge {
            Some(bridge) if segment.is_for_sender() => port.send_out_of(bridge, &frame),
            _ => port.inject(&frame, segment.is_for_sender()),
        };
        if let Err(error) = sent {
            tracing::debug!("{segment:?}: {error:#}");
        }
    }
}

/// The bridge of a tap that nobody reads.
fn deserted_bridge(port: &Port) -> Result<Option<u32>> {
    let meta = port.meta()?;
    let device = netdev::find_index(meta.ifindex)?;
    let is_deserted = device.is_none_or(|device| !device.carrier);
    Ok(Some(meta.bridge).filter(|bridge| is_deserted && *bridge != 0))
}

/// The tap, and the VM behind it, have gone: resets the senders of what the VM had not
/// acknowledged, by way of the bridge; how many. The calling thread must be in the tap's network
/// namespace.
pub fn reset_senders(port: &Port) -> Result<usize> {
    let bridge = port.meta()?.bridge;
    if bridge == 0 {
        return Ok(0);
    }
    let reset = |(key, flow): &(flow_key, flow)| -> Result<()> {
        Ok(port.send_out_of(bridge, &frame(key, flow, Segment::ResetSender))?)
    };
    let flows = port.flows()?;
    let behind = flows.iter().filter(|(_, flow)| bytes_owed(flow) > 0);
    Ok(behind.map(reset).filter(Result::is_ok).count())
}
