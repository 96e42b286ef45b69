//! The windows of connections.

use serde::Serialize;
use vsnoop_bpf::types::{INCAST_AVOIDS, flow, incast, incast_waiting};

use super::reckoning::bits_per_second;

/// The window of one connection, as incast control sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowWindow {
    /// The window that it asks for, bytes.
    pub window_bytes: u32,
    /// Its outstanding credit: granted, and not received.
    pub granted_bytes: u64,
    /// The part that the sender was shown.
    pub shown_bytes: u64,
    /// Smoothed round trip; null if not known yet.
    pub rtt_ns: Option<u32>,
    /// b_m, bits per second.
    pub measured_bits_per_second: u64,
    /// (b_e - b_m) / b_e, in hundredths.
    pub d_percent: u32,
    /// "slow start" or "avoidance".
    pub phase: &'static str,
    /// Its window is closed, and it is in the grant queue.
    pub waiting: bool,
}

/// `None` if it is not shaped.
pub fn window_of(flow: &flow) -> Option<FlowWindow> {
    let incast = &flow.incast;
    incast.is_shaped().then(|| FlowWindow {
        window_bytes: incast.window,
        granted_bytes: incast.edge.diff(incast.received).max(0) as u64,
        shown_bytes: flow.adv_edge.diff(incast.received).max(0) as u64,
        rtt_ns: Some(incast.rtt_ns).filter(|rtt| *rtt != 0),
        measured_bits_per_second: bits_per_second(incast.measured.into()),
        d_percent: d_percent(incast),
        phase: match u32::from(incast.bits) & INCAST_AVOIDS {
            0 => "slow start",
            _ => "avoidance",
        },
        waiting: u32::from(incast.waiting) == incast_waiting::INCAST_QUEUED,
    })
}

/// (b_e - b_m) / b_e, in hundredths; b_e is the window per round trip, bytes per 2^20 ns.
fn d_percent(incast: &incast) -> u32 {
    let measured = u64::from(incast.measured);
    let expected = (u64::from(incast.window) << 20) / u64::from(incast.rtt_ns.max(1));
    if incast.rtt_ns == 0 || expected <= measured {
        return 0;
    }
    ((expected - measured) * 100 / expected) as u32
}
