//! Resets a connection at both ends.
//!
//! If a RST is lost, or does not match the receiver's RCV.NXT, the record stays as a tombstone, and
//! the hooks answer the next packet of either end with RST.

use vsnoop_bpf::types::{flow, flow_key, reset_reason};
use vsnoop_bpf::{Port, outstanding_bytes};

use crate::error::Result;
use crate::frame::{Segment, frame};
use crate::system::clock::monotonic_ns;
use crate::system::netdev;

/// Resets the connection at both ends and counts the reason; false if the VM has acknowledged
/// something since `flow` was read. The calling thread must be in the tap's network namespace.
pub fn reset(port: &Port, key: &flow_key, flow: &flow, why: reset_reason::Type) -> Result<bool> {
    if !port.mark_reset(key, flow, monotonic_ns()?)? {
        return Ok(false);
    }
    send(port, key, flow);
    port.count_reset(why, 1, outstanding_bytes(flow))?;
    if is_of_the_host(why) {
        port.note_failure(u16::from_be(key.vm_port), monotonic_ns()?)?;
    }
    Ok(true)
}

/// Could the connection have succeeded without vsnoop? Not if its VM is gone.
fn is_of_the_host(why: reset_reason::Type) -> bool {
    use reset_reason::{RESET_ENGINE_GONE, RESET_REFUSED, RESET_SILENT};
    matches!(why, RESET_REFUSED | RESET_SILENT | RESET_ENGINE_GONE)
}

/// Sends the RST to both ends; also used to repeat it, since an end that only reads would wait for
/// ever after a loss. A failure is not reported: the tombstone answers later.
///
/// A bridge drops frames from a tap without a reader: the RST to the sender then leaves through the
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

/// The bridge of a tap without a reader.
fn deserted_bridge(port: &Port) -> Result<Option<u32>> {
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
