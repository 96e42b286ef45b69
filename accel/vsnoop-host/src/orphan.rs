//! A port whose pins another program has removed, or whose BPF file system it has unmounted, while
//! the hooks are on the tap: no command finds it any more.
//!
//! Helper and engine have its maps, links and slabs open, so that the hooks stay, and the engine
//! goes on handing over. The port is paused, as for a detach, until the VM has acknowledged
//! everything, or for [`PATIENCE`]; then it is taken off. Where that was too short, both ends of
//! the connections are reset. The helper does so; the engine, later, for a helper that has ended.

use std::time::{Duration, Instant};

use vsnoop_bpf::Port;
use vsnoop_bpf::types::hold;
use vsnoop_hold::detach_resets::{Ended, reset_held, rsts_to_send};
use vsnoop_hold::drain_limit;

use crate::error::{Result, with_causes};
use crate::holds::amount;
use crate::port_removal::{device_exists, restore_qdisc};
use crate::port_resets::{reset_senders, send};
use crate::ports::Attached;
use crate::system::clock::monotonic_ns;
use crate::system::netns::Netns;

/// How long its VM may take to acknowledge everything.
pub const PATIENCE: Duration = Duration::from_secs(drain_limit::TIMEOUT_S as u64);

/// The wait for the VM of a port without pins.
#[derive(Debug)]
pub struct Orphan {
    since: Instant,
    patience: Duration,
}

impl Orphan {
    /// Opens a port that is not listed any more, and pauses it. `None`: it was detached.
    pub fn find_orphan(attached: &Attached, patience: Duration) -> Option<Self> {
        if !attached.port.is_orphaned() {
            return None;
        }
        if let Err(error) = attached.port.pause_orphan() {
            tracing::warn!("port {}: it is not paused: {error}", attached.name);
        }
        Some(Self { since: Instant::now(), patience })
    }

    /// Takes it off if it is time. Returns whether nothing is left to do. `netns`: the tap's
    /// network namespace; `read` reads a hold by its number.
    pub fn reset_silent(
        &self,
        attached: &Attached,
        netns: Option<&Netns>,
        read: impl Fn(u32) -> hold,
    ) -> bool {
        self.try_look(attached, netns, read).unwrap_or_else(|error| {
            tracing::warn!("port {}: {}", attached.name, with_causes(&error));
            // Nothing is known that a later look could do.
            self.since.elapsed() > 2 * self.patience
        })
    }

    fn try_look(
        &self,
        attached: &Attached,
        netns: Option<&Netns>,
        read: impl Fn(u32) -> hold,
    ) -> Result<bool> {
        let port = &attached.port;
        // One whose taps have gone with it has taken the hooks along.
        if netns.is_none() && !port.links_are_off()? && self.since.elapsed() <= 2 * self.patience {
            return Ok(false);
        }
        let tap_deleted = !device_exists(port, netns)?;
        if !tap_deleted && port.links_are_off()? {
            return Ok(true);
        }
        let (flows, bytes) = port.outstanding()?;
        let is_over = drain_limit::is_over(
            bytes,
            self.since.elapsed().as_nanos() as u64,
            self.patience.as_nanos() as u64,
        );
        if !tap_deleted && !is_over {
            return Ok(false);
        }
        let told = match netns {
            Some(netns) if tap_deleted => netns.run(|| reset_senders(port))?,
            _ => 0,
        };
        let ended = if tap_deleted { Ended::default() } else { take_off(attached, netns, read)? };
        tracing::warn!(
            "port {}: taken off without its pins: {} were on their way to the VM; {} connections were \
             reset, {} bytes were still held for them; {told} senders of a deleted tap were sent a \
             RST",
            attached.name,
            amount(bytes, flows),
            ended.flows,
            ended.held_bytes
        );
        Ok(true)
    }
}

/// Steps of a detach that need no pins, in the same order.
fn take_off(
    attached: &Attached,
    netns: Option<&Netns>,
    read: impl Fn(u32) -> hold,
) -> Result<Ended> {
    let port = &attached.port;
    if let Some(note) = restore_qdisc(port, &attached.meta, netns)? {
        tracing::warn!("port {}: {note}", attached.name);
    }
    let mut ended = reset(port, netns, &read)?;
    port.take_links_off()?;
    ended.add(reset(port, netns, &read)?);
    Ok(ended)
}

fn reset(port: &Port, netns: Option<&Netns>, read: &impl Fn(u32) -> hold) -> Result<Ended> {
    let now_ns = monotonic_ns()?;
    let ended = reset_held(&mut { port }, read, now_ns)?;
    let Some(netns) = netns else { return Ok(ended) };
    let rsts = rsts_to_send(port.flows()?, read, now_ns);
    netns.run(|| {
        for (key, flow) in &rsts {
            send(port, key, flow);
        }
        Ok(ended)
    })
}
