//! Incast control as the commands see it: which interface is a port's uplink (`uplink`), what it
//! may be set to (`setting`) and is without an option (`configured`), how its packets come
//! (`ways`), how uplinks are (`state`), which there are (`listed`), and what is shaped behind them.

pub mod configured;
pub mod listed;
pub mod setting;
pub mod state;
pub mod uplink;
pub mod ways;

use anyhow::Result;
use serde::Serialize;
use vsnoop_bpf::types::{INCAST_AVOIDS, flow, incast, incast_waiting};
use vsnoop_bpf::{Port, Uplink, UplinkId};

use crate::lock::CommandLock;
use crate::ports::{self, Attached};
use crate::system::netdev;
use crate::system::netns::Netns;

pub use setting::{Rate, buffer, rate};
pub use state::{Control, UplinkState};

/// Takes away the uplinks that no port is behind any more. Nobody may be about to attach one.
pub fn sweep(_lock: &CommandLock) -> Result<()> {
    if Uplink::are_any() { Ok(Uplink::sweep(&used()?)?) } else { Ok(()) }
}

/// The same for the helper: while a command works it is that one's concern.
pub fn sweep_if_idle() -> Result<()> {
    if !Uplink::are_any() {
        return Ok(());
    }
    let used = used()?;
    if Uplink::list()?.iter().all(|id| used.contains(id)) {
        return Ok(());
    }
    CommandLock::try_take()?.map_or(Ok(()), |lock| sweep(&lock))
}

/// Those with a port behind them. What port a damaged one was, perhaps of another version, can be read
/// from the name of its pins, but not its uplink: it may be any of its network namespace.
fn used() -> Result<Vec<UplinkId>> {
    let inventory = ports::inventory()?;
    let behind: Vec<_> = inventory.ports.iter().map(uplink_id).collect();
    let damaged: Vec<_> =
        inventory.damaged.iter().filter_map(|damaged| UplinkId::of(&damaged.path)).collect();
    let is_used = |id: &UplinkId| {
        behind.contains(id) || damaged.iter().any(|damaged| damaged.netns == id.netns)
    };
    Ok(Uplink::list()?.into_iter().filter(is_used).collect())
}

/// That of a port; its interface is 0 where it has none.
pub fn uplink_id(attached: &Attached) -> UplinkId {
    UplinkId { netns: attached.meta.netns, ifindex: attached.meta.uplink }
}

/// The window of one connection, as incast control sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowWindow {
    /// What it is to have on its way at most.
    pub window_bytes: u32,
    /// What it may have on its way now: granted, and not received.
    pub granted_bytes: u64,
    /// Of that, what the sender has been told of.
    pub shown_bytes: u64,
    /// Round trip, smoothed; null when not known yet.
    pub rtt_ns: Option<u32>,
    /// b_m, bits per second.
    pub measured_bits_per_second: u64,
    /// (b_e - b_m) / b_e, in hundredths.
    pub d_percent: u32,
    /// "slow start" or "avoidance".
    pub phase: &'static str,
    /// Its window is closed, and it stands in line for credit.
    pub waiting: bool,
}

/// `None` where it is left alone.
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
        waiting: u32::from(incast.waiting) == incast_waiting::INCAST_IN_LINE,
    })
}

/// Where nobody counts what comes in any more windows are the VMs' own again. What is to be said, once.
pub fn notice_gone(attached: &Attached) -> Result<Option<String>> {
    let id = uplink_id(attached);
    if id.ifindex == 0 {
        return Ok(None);
    }
    let Some(uplink) = Uplink::open(id.netns, id.ifindex)? else { return Ok(None) };
    if uplink.has_hook() || uplink.state()?.rate == 0 {
        return Ok(None);
    }
    uplink.disable();
    let place = Netns::find(id.netns);
    let device =
        place.and_then(|place| place.run(|| netdev::find_index(id.ifindex)).ok()).flatten();
    let (name, control) = state::control(&uplink, &uplink.state()?, device.as_ref());
    Ok(state::trouble(&name, control))
}

/// A record of this port was forgotten.
pub fn forget(attached: &Attached, flow: &flow) -> Result<()> {
    if !flow.incast.is_shaped() {
        return Ok(());
    }
    if let Some(uplink) = Uplink::open(attached.meta.netns, attached.meta.uplink)? {
        uplink.forget(flow, &attached.port.incast()?);
    }
    Ok(())
}

/// The port goes: what its connections had of the uplink goes with them. Nobody else may be at its records.
pub fn forget_all(port: &Port) -> Result<()> {
    let meta = port.meta()?;
    if meta.uplink == 0 {
        return Ok(());
    }
    let Some(uplink) = Uplink::open(meta.netns, meta.uplink)? else { return Ok(()) };
    let share = port.incast()?;
    for (key, flow) in port.flows()?.iter().filter(|(_, flow)| flow.incast.is_shaped()) {
        // Not twice, should this be interrupted and repeated.
        if port.delete_flow_if(key, |_| true)? {
            uplink.forget(flow, &share);
        }
    }
    Ok(())
}

/// (b_e - b_m) / b_e, in hundredths; b_e, per 2^20 ns, is what the window would carry in a round trip.
fn d_percent(incast: &incast) -> u32 {
    let measured = u64::from(incast.measured);
    let expected = (u64::from(incast.window) << 20) / u64::from(incast.rtt_ns.max(1));
    if incast.rtt_ns == 0 || expected <= measured {
        return 0;
    }
    ((expected - measured) * 100 / expected) as u32
}

/// Of bytes per 2^20 ns.
fn bits_per_second(rate: u64) -> u64 {
    ((u128::from(rate) * 8 * 1_000_000_000) >> 20) as u64
}
