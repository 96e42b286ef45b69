//! Lets the connections of a port be split, and ends that.

use std::thread;
use std::time::{Duration, Instant};

use vsnoop_bpf::Port;
use vsnoop_bpf::split::{self, SplitPort, SplitSpec, full_key};
use vsnoop_bpf::types::{flow, flow_key, flow_mode, reset_reason, split_flow};
use vsnoop_flow::ends_at;

use super::error::Result;
use super::pair::{self, TapId};
use super::{namespace, probe};
use crate::error::with_causes;
use crate::lock::try_lock_directory;
use crate::system::clock::monotonic_ns;
use crate::system::netdev::Device;

/// How long the splitter may take to end what is split. It joins what it can, and resets the rest
/// before this is over.
pub const PATIENCE: Duration = Duration::from_secs(3);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Makes all that the splitter needs for a port; it then begins by itself. The calling thread is in
/// the tap's network namespace. After an error nothing is left.
pub fn turn_on(port: &Port, device: &Device) -> Result<()> {
    probe::require_repair()?;
    let sockets = namespace::open_or_make()?;
    let tap = TapId::from_port(port)?;
    let made = pair::make(tap, device, &sockets)?;
    let spec = SplitSpec { tap_ifindex: device.index, socket_ifindex: made.near };
    let complete = || {
        split::attach(port, &spec)?;
        port.set_downloads(true).inspect_err(|_| {
            // Best effort: the error that led here is the one to report.
            let _ = split::detach(port);
        })
    };
    Ok(complete().inspect_err(|_| {
        let _ = sockets.run(|| pair::remove_far(tap));
    })?)
}

/// Ends all of it. Nothing happens if the port's connections are not split.
pub fn turn_off(port: &Port) -> Result<()> {
    end(port);
    split::detach(port)?;
    remove_pair_of(port)
}

/// Ends all of it at once: the tap is in another network namespace, where the pair does not lead.
/// Cuts the connections that are split.
pub fn cut(port: &Port) -> Result<()> {
    port.set_downloads(false)?;
    split::detach(port)?;
    remove_pair_of(port)
}

/// Waits until no connection of the port is split, or the splitter has had its time; those that are
/// left are reset. No new one is split from now on.
pub fn end(port: &Port) {
    if !split::is_attached(port) {
        return;
    }
    if let Err(error) = try_end(port) {
        tracing::warn!("connections that are split are not joined: {}", with_causes(&error));
    }
}

fn try_end(port: &Port) -> Result<()> {
    port.set_downloads(false)?;
    let opened = SplitPort::open(port)?;
    opened.turn_on(false);
    wait_until(Instant::now() + PATIENCE, || opened.split_flows().is_empty());
    reset_those_left(port, &opened, reset_reason::RESET_DETACHED)
}

/// The tap was deleted: waits until the splitter has left the connections that are split, so that
/// their peers can be sent a RST, at most until `deadline`. No other splitter would leave them: it
/// finds no tap.
pub fn end_deleted(port: &Port, deadline: Instant) -> Result<()> {
    if !split::is_attached(port) {
        return Ok(());
    }
    let opened = SplitPort::open(port)?;
    wait_until(deadline, || opened.split_flows().is_empty() || !splitter_lives());
    reset_those_left(port, &opened, reset_reason::RESET_NO_READER)
}

/// Puts connections that the splitter has not left into RESET, without their sockets: both ends are
/// sent RSTs. One failure must not keep the others from it.
fn reset_those_left(port: &Port, opened: &SplitPort, why: reset_reason::Type) -> Result<()> {
    let (mut count, mut failed) = (0, None);
    for entry in opened.split_flows().iter().filter(|(_, split)| split.is_over == 0) {
        match reset_left(port, entry) {
            Ok(is_reset) => count += u64::from(is_reset),
            Err(error) => failed = Some(error),
        }
    }
    if count > 0 {
        port.count_reset(why, count, 0)?;
    }
    failed.map_or(Ok(()), Err)
}

/// False if the splitter, or another process, has reset it.
fn reset_left(port: &Port, entry: &(flow_key, split_flow)) -> Result<bool> {
    let (key, now_ns) = (full_key(entry), monotonic_ns()?);
    let is_live = |flow: &flow| u32::from(flow.mode) != flow_mode::FLOW_RESET;
    let Some(flow) = port.flow(&key)?.filter(is_live) else { return Ok(false) };
    let (_, split) = entry;
    let ends = ends_at(flow.vm_seq, split);
    port.rejoin(&key, &ends, now_ns)?;
    let Some(flow) = port.flow(&key)? else { return Ok(false) };
    Ok(port.mark_reset(&key, &flow, now_ns)?)
}

/// It has a lock of their namespace as long as it runs, also one of another /run.
fn splitter_lives() -> bool {
    let path = namespace::path();
    path.exists() && !matches!(try_lock_directory(&path), Ok(Some(_)))
}

fn wait_until(deadline: Instant, is_done: impl Fn() -> bool) {
    while !is_done() && Instant::now() < deadline {
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// The connections of a port that are split, while it is paused or detached.
pub struct SplitFlows(Option<SplitPort>);

impl SplitFlows {
    /// Counts them; a port without downloads, or whose pins another process removes, has none.
    pub fn count_splits(port: &Port) -> Self {
        let is_attached = split::is_attached(port);
        Self(is_attached.then(|| SplitPort::open(port).ok()).flatten())
    }

    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, |port| port.split_flows().len() as u64)
    }
}

/// Deletes the pair of a port whose programs were taken off, unless its tap was attached again.
pub fn remove_pair_of(port: &Port) -> Result<()> {
    let tap = TapId::from_port(port)?;
    match Port::open(tap.netns, tap.ifindex).is_ok_and(|now| now.id() != port.id()) {
        true => Ok(()),
        false => remove_pair(tap),
    }
}

/// Deletes the pair of a tap that no programs use. No error if there is none.
pub fn remove_pair(tap: TapId) -> Result<()> {
    namespace::open()?.map_or(Ok(()), |sockets| sockets.run(|| pair::remove_far(tap)))
}
