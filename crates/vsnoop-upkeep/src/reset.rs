//! Resets a connection at both ends.
//!
//! If a RST is lost, or does not match the receiver's RCV.NXT, the record stays in RESET, and the
//! hooks answer the next packet of either end with RST.

use vsnoop_flow::types::{flow, flow_key, hold, reset_reason};
use vsnoop_hold::Reason;

use crate::connections::{Connections, mark_reset};
use crate::held::outstanding_bytes;
use crate::segment::{Segment, frame};

/// Resets the connection at both ends and counts the reason; false if the VM has acknowledged
/// something since `flow` was read. `bridge`: as in [`send`]. `now_ns`: CLOCK_MONOTONIC.
pub fn reset<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    why: reset_reason::Type,
    bridge: Option<u32>,
    now_ns: u64,
) -> Result<bool, C::Error> {
    if !mark_reset(connections, key, flow, now_ns)? {
        return Ok(false);
    }
    send(connections, key, flow, bridge);
    connections.count_reset(why, 1, outstanding_bytes(flow))?;
    if is_of_the_host(why) {
        connections.note_failure(u16::from_be(key.vm_port), now_ns)?;
    }
    Ok(true)
}

/// Resets the connection of this hold, which the engine gives up. `bridge` and `now_ns`: as in
/// [`reset`].
pub fn give_up<C: Connections>(
    connections: &mut C,
    hold: &hold,
    reason: Reason,
    bridge: Option<u32>,
    now_ns: u64,
) -> Result<GivenUp, C::Error> {
    let Some(flow) = connections.flow(&hold.key)? else { return Ok(GivenUp::Gone) };
    let why = match reason {
        Reason::Refused => reset_reason::RESET_REFUSED,
        Reason::Silent => reset_reason::RESET_SILENT,
    };
    let is_reset = reset(connections, &hold.key, &flow, why, bridge, now_ns)?;
    Ok(if is_reset { GivenUp::Reset } else { GivenUp::Advanced })
}

/// Result of [`give_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It was reset.
    Reset,
    /// It has no record any more.
    Gone,
    /// The VM has acknowledged something meanwhile; nothing was done.
    Advanced,
}

/// Could the connection have succeeded without vsnoop? Not if its VM is gone.
fn is_of_the_host(why: reset_reason::Type) -> bool {
    use reset_reason::{RESET_ENGINE_GONE, RESET_REFUSED, RESET_SILENT};
    matches!(why, RESET_REFUSED | RESET_SILENT | RESET_ENGINE_GONE)
}

/// Sends the RST to both ends; also used to repeat it, since an end that only reads would wait for
/// ever after a loss. A failure is not reported: the hooks send a RST later.
///
/// `bridge`: the bridge of a tap without a reader. It drops frames from such a tap: the RST to the
/// sender then leaves through the bridge itself.
pub fn send<C: Connections>(connections: &mut C, key: &flow_key, flow: &flow, bridge: Option<u32>) {
    for segment in [Segment::ResetVm, Segment::ResetSender] {
        let frame = frame(key, flow, segment);
        let sent = match bridge {
            Some(bridge) if segment.is_for_sender() => connections.send_out_of(bridge, &frame),
            _ => connections.inject(&frame, segment.is_for_sender()),
        };
        if let Err(error) = sent {
            tracing::debug!("{segment:?}: {error:#}");
        }
    }
}
