//! Incast control: the decisions of flow/incast.h about the flows behind an uplink.

use std::ptr::{from_ref, null};

use crate::types::{self, *};

/// Result of offering a grant to a flow.
#[derive(Clone, Copy, Debug)]
pub enum Served {
    /// Its sender must be sent this ACK.
    Ack(ack_fields),
    /// There is not credit enough: back into the queue.
    NotYet,
    /// It does not wait in this queue any more.
    Gone,
}

impl types::incast {
    /// Does the granted edge bound its window?
    pub fn is_shaped(&self) -> bool {
        u32::from(self.bits) & INCAST_SHAPED != 0
    }
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

/// Records whether the sender's latest segment came through the uplink.
pub fn note_ingress(f: &mut flow, by_uplink: bool) {
    // SAFETY: as in shapes().
    unsafe { types::incast_note_ingress(f, by_uplink) }
}

/// The equal share of one flow of this port, bytes.
pub fn share(u: &uplink, port: &incast_port) -> u32 {
    // SAFETY: as in shapes().
    unsafe { types::incast_share(u, port) }
}

/// First window of a flow, bytes.
pub fn first_window(u: &uplink, port: &incast_port, mss: u32) -> u32 {
    // SAFETY: as in shapes().
    unsafe { types::incast_first_window(u, port, mss) }
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

/// A segment with data came from the sender.
pub fn received(f: &mut flow, u: &mut uplink, port: &mut incast_port, s: &segment, now: u64) {
    // SAFETY: as in shapes().
    unsafe { types::incast_received(f, u, port, s, now) }
}

/// An ACK is about to go to the sender, with the VM's segment `vm`, or because data came. Returns
/// what the flow waits for from now on, if that is new.
pub fn open(
    f: &mut flow,
    u: &mut uplink,
    port: &mut incast_port,
    vm: Option<&segment>,
    now: u64,
) -> types::incast_waiting::Type {
    // SAFETY: as in shapes(); null is allowed.
    unsafe {
        let why = types::incast_reason(f, vm.map_or(null(), from_ref));
        types::incast_open(f, u, port, why, now)
    }
}

/// Begins to measure a round trip with an ACK to the sender. `vm`: the VM's segment with the ACK.
pub fn note_shown(f: &mut flow, vm: Option<&segment>, now: u64) {
    // SAFETY: as in shapes(); null is allowed.
    unsafe { types::incast_note_shown(f, vm.map_or(null(), from_ref), now) }
}

/// Which queue of this port is served next, if there is credit for its head?
pub fn next(u: &mut uplink, port: &mut incast_port, now: u64) -> types::incast_waiting::Type {
    // SAFETY: as in shapes().
    unsafe { types::incast_next(u, port, now) }
}

/// Offers a grant to a flow that waits for `waits`.
pub fn serve(
    f: &mut flow,
    u: &mut uplink,
    waits: types::incast_waiting::Type,
    port: &mut port_state,
    p: &policy,
    now: u64,
) -> Served {
    // SAFETY: as in shapes().
    match unsafe { types::incast_serve(f, u, waits, &mut port.incast, now) } {
        incast_served::SERVED_NOT_YET => Served::NotYet,
        incast_served::SERVED_ACK => {
            let mut ack = ack_fields::default();
            // SAFETY: as in shapes(); a flow without a hold has null.
            unsafe { types::incast_show(f, null(), port, p, now, &mut ack) };
            Served::Ack(ack)
        }
        incast_served::SERVED_GONE => Served::Gone,
        other => unreachable!("incast_serve() answered {other}"),
    }
}

/// The flow is not shaped any more, or its record is removed: returns its credit.
pub fn end(f: &mut flow, u: &mut uplink, port: &mut incast_port) {
    // SAFETY: as in shapes().
    unsafe { types::incast_end(f, u, port) }
}
