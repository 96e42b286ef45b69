//! Follows changes that other programs make around an attached tap.
//!
//! `attach` checks the tap once; other programs can change it later. At each look the helper
//! handles
//!
//! - other programs on the egress, which could take away a segment that the hook counts as
//!   delivered, and at the ingress before vsnoop's own, which could take away the VM's ACKs: the
//!   port is suspended (no new early ACKs; those given out are honoured) until they are gone. The
//!   flag is in the pinned policy (`Port::suspend`), beside the operator's own choice, so that the
//!   next helper finds it. Between two looks, and while no helper runs, such a program goes
//!   unnoticed;
//! - the tap's bridge, over which its senders are reset when the tap is deleted;
//! - its MTU, for the devices of its downloads, and that it is in its network namespace, where they
//!   are;
//! - its name, for messages and tables.
//!
//! The queue discipline needs no look: the hook itself checks it for every segment.

use std::path::PathBuf;

use anyhow::Result;
use vsnoop_host::downloads;
use vsnoop_host::ports::{Attached, AttachmentState};
use vsnoop_host::system::foreign::{self, Foreign};
use vsnoop_host::system::netdev::{self, Device};
use vsnoop_host::system::netns::Netns;

/// State of one port between two looks, to log each change once.
#[derive(Default)]
pub struct LoggedState {
    foreign: Vec<Foreign>,
    trouble: Option<String>,
}

impl LoggedState {
    /// `path`: the tap's network namespace, as [`Netns::find_again`] keeps it.
    pub fn check_surroundings(&mut self, attached: &Attached, path: &mut Option<PathBuf>) {
        // A port that is only observed needs no suspension.
        if attached.state == AttachmentState::Observing {
            return;
        }
        let trouble = match self.try_look(attached, path) {
            Ok(()) => None,
            // Just detached, or its tap just deleted.
            Err(_) if !attached.port.links_alive() => None,
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(text) = trouble.as_ref().filter(|text| self.trouble.as_ref() != Some(*text)) {
            tracing::warn!(
                "port {}: its surroundings cannot be looked at, and other programs go unnoticed: {text}",
                attached.name
            );
        }
        self.trouble = trouble;
    }

    fn try_look(&mut self, attached: &Attached, path: &mut Option<PathBuf>) -> Result<()> {
        // A namespace that cannot be found is gone with its taps.
        let Some(netns) = Netns::find_again(attached.meta.netns, path) else { return Ok(()) };
        netns.run(|| {
            let Some(device) = netdev::find_index(attached.meta.ifindex)? else {
                return end_downloads_of_moved(attached);
            };
            self.suspend_port(attached, &device, foreign::around(&device, &attached.port)?)?;
            follow_bridge(attached, &device)?;
            follow_mtu(attached, &device)?;
            follow_name(attached, &device)
        })
    }

    fn suspend_port(
        &mut self,
        attached: &Attached,
        device: &Device,
        found: Vec<Foreign>,
    ) -> Result<()> {
        let changed = attached.port.suspend(!found.is_empty())?;
        if found.is_empty() && changed {
            tracing::info!(
                "port {}: no other program is left; it is no longer suspended",
                attached.name
            );
        } else if found != self.foreign && !found.is_empty() {
            tracing::warn!(
                "port {}: paused: it has {}; {}, and it goes on by itself, or detach it",
                attached.name,
                foreign::complaint(&found),
                foreign::way_out(&found, &device.name)
            );
        }
        self.foreign = found;
        Ok(())
    }
}

/// A tap that left its bridge keeps the last one: scripts remove a tap from its bridge before they
/// delete it, and the senders are still behind it.
fn follow_bridge(attached: &Attached, device: &Device) -> Result<()> {
    if device.master.unwrap_or(0) == attached.meta.bridge {
        return Ok(());
    }
    let bridge = netdev::bridge_of(device)?;
    if bridge != 0 && bridge != attached.meta.bridge {
        attached.port.set_bridge(bridge)?;
        tracing::info!("port {} is a port of the bridge with index {bridge} now", attached.name);
    }
    Ok(())
}

fn end_downloads_of_moved(attached: &Attached) -> Result<()> {
    // A tap that was deleted has no programs.
    if attached.port.links_alive() && downloads::end_of_moved(attached)? {
        let name = &attached.name;
        tracing::warn!("port {name}: its downloads end: the tap is in another network namespace");
    }
    Ok(())
}

fn follow_mtu(attached: &Attached, device: &Device) -> Result<()> {
    if downloads::follow_mtu(attached, device)? {
        let (name, mtu) = (&attached.name, device.mtu);
        tracing::info!("port {name}: the devices of its downloads have the tap's MTU {mtu} now");
    }
    Ok(())
}

fn follow_name(attached: &Attached, device: &Device) -> Result<()> {
    if device.name == attached.port.ifname()? {
        return Ok(());
    }
    attached.port.set_ifname(&device.name)?;
    tracing::info!("port {} is called {} now", attached.name, device.name);
    Ok(())
}
