//! Incast control: the decisions of flow/incast.h about the flows behind an uplink.

use crate::types::{self, *};

impl types::incast {
    /// Does the granted edge bound its window?
    pub fn is_shaped(&self) -> bool {
        u32::from(self.bits) & INCAST_SHAPED != 0
    }
}

/// A rate in the hooks' unit: bytes per 2^20 ns; at least 1.
pub fn uplink_rate(bits_per_second: u64) -> u32 {
    let bytes = u128::from(bits_per_second) * (1 << 20) / 8 / 1_000_000_000;
    u32::try_from(bytes).unwrap_or(u32::MAX).max(1)
}

/// May this flow be shaped?
pub fn shapes(f: &flow, u: &uplink) -> bool {
    // SAFETY: all pointers come from live references; the C code keeps none.
    unsafe { types::incast_shapes(f, u) }
}

/// The credit: bytes that all flows together may have in flight.
pub fn credit(u: &uplink) -> u32 {
    // SAFETY: as in shapes().
    unsafe { types::incast_credit(u) }
}

/// Outstanding credit of live flows, bytes.
pub fn outstanding(u: &uplink) -> i64 {
    // SAFETY: as in shapes().
    unsafe { types::incast_outstanding(u) }
}

/// The flow's outstanding credit, bytes.
pub fn flow_outstanding(f: &flow) -> i64 {
    // SAFETY: as in shapes().
    unsafe { types::incast_flow_outstanding(f).into() }
}

/// Does the flow's outstanding credit count?
pub fn is_live(f: &flow, u: &uplink) -> bool {
    // SAFETY: as in shapes().
    unsafe { types::incast_is_live(f, u) }
}

/// Did a packet with this skb_iif come through the uplink?
pub fn is_ingress(u: &uplink, ifindex: u32) -> bool {
    // SAFETY: as in shapes().
    unsafe { types::incast_is_ingress(u, ifindex) }
}

/// The equal share of one flow of this port, bytes.
pub fn share(u: &uplink, port: &incast_port) -> u32 {
    // SAFETY: as in shapes().
    unsafe { types::incast_share(u, port) }
}

/// First window of a flow, bytes. `accepts`: the VM accepts the connection, and has not opened it.
pub fn first_window(u: &uplink, port: &incast_port, accepts: bool) -> u32 {
    // SAFETY: as in shapes().
    unsafe { types::incast_first_window(u, port, accepts) }
}

/// Minimum window of this flow, bytes.
pub fn least(f: &flow, u: &uplink, port: &incast_port) -> u32 {
    // SAFETY: as in shapes().
    unsafe { types::incast_least(f, u, port) }
}

/// Rounds a window down to whole segments, bytes.
pub fn whole(f: &flow, u: &uplink, port: &incast_port, window: u32) -> u32 {
    // SAFETY: as in shapes().
    unsafe { types::incast_whole(f, u, port, window) }
}

/// Ends slots, epochs and censuses that are over. `now` in ns, here and below.
pub fn advance_time(u: &mut uplink, port: &mut incast_port, now: u64) {
    // SAFETY: as in shapes().
    unsafe { types::incast_advance_time(u, port, now) }
}

/// Shaping of the flow ends, or its record is removed: returns its credit.
pub fn end(f: &mut flow, u: &mut uplink, port: &mut incast_port) {
    // SAFETY: as in shapes().
    unsafe { types::incast_end(f, u, port) }
}

/// May the hooks leave out [`answer`] for this segment of the VM?
pub fn ignores(f: &flow, u: &uplink, vm: &segment) -> bool {
    // SAFETY: as in shapes().
    unsafe { types::incast_ignores(f, u, vm) }
}

/// The part of incast control in a segment of the VM. Returns whether the flow waits now.
pub fn answer(
    f: &mut flow,
    u: &mut uplink,
    port: &mut incast_port,
    vm: &segment,
    now: u64,
) -> bool {
    // SAFETY: as in shapes().
    unsafe {
        let waits = types::incast_open_for(f, u, port, vm) != 0;
        types::incast_note_shown(f, vm, now);
        waits
    }
}
