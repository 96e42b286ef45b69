//! What others change around an attached tap.
//!
//! `attach` looks at the tap once; the tap lives on among others. At each look the helper sees to
//!
//! - programs of others that appeared on the egress: they could take away what the hook believes to
//!   be delivered, so the port is suspended (no new early ACKs, those given out are honoured) until
//!   they have gone. The mark is in the pinned policy (`Port::suspend`), beside the operator's own
//!   choice, so that the next helper finds it if this one is killed. Between two looks, and while
//!   no helper runs, such a program goes unnoticed;
//! - the bridge that the tap is a port of, for the day when the tap is deleted and its senders are
//!   to be reset over it;
//! - its name, which messages and tables show.
//!
//! A queue discipline is no concern here: the hook itself looks at it for every segment.

use std::path::PathBuf;

use anyhow::Result;
use vsnoop_bpf::Hook;
use vsnoop_host::ports::{Attached, State};
use vsnoop_host::system::egress::{self, Foreign};
use vsnoop_host::system::netdev::{self, Device};
use vsnoop_host::system::netns::Netns;

/// What is remembered of one port from one look to the next, only to log each thing once.
#[derive(Default)]
pub struct Surroundings {
    foreign: Vec<Foreign>,
    trouble: Option<String>,
}

impl Surroundings {
    /// `path` leads to the tap's network namespace, as [`Netns::find_again`] keeps it.
    pub fn look(&mut self, attached: &Attached, path: &mut Option<PathBuf>) {
        // Where nothing is acknowledged early there is nothing to suspend.
        if attached.state == State::Observing {
            return;
        }
        let trouble = match self.try_look(attached, path) {
            Ok(()) => None,
            // Detached, or its tap deleted, at this moment: no concern of ours any more.
            Err(_) if !attached.port.links_alive() => None,
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(text) = trouble.as_ref().filter(|text| self.trouble.as_ref() != Some(*text)) {
            tracing::warn!(
                "port {}: its surroundings cannot be looked at, and other egress programs go \
                 unnoticed: {text}",
                attached.name
            );
        }
        self.trouble = trouble;
    }

    fn try_look(&mut self, attached: &Attached, path: &mut Option<PathBuf>) -> Result<()> {
        let own = attached.port.program_id(Hook::ToVm)?;
        // A namespace that nothing leads to has taken its taps along.
        let Some(netns) = Netns::find_again(attached.meta.netns, path) else { return Ok(()) };
        netns.run(|| {
            let Some(device) = netdev::find_index(attached.meta.ifindex)? else { return Ok(()) };
            self.suspend(attached, &device, egress::foreign(&device, Some(own))?)?;
            follow_bridge(attached, &device)?;
            follow_name(attached, &device)
        })
    }

    fn suspend(&mut self, attached: &Attached, device: &Device, found: Vec<Foreign>) -> Result<()> {
        let changed = attached.port.suspend(!found.is_empty())?;
        if found.is_empty() && changed {
            tracing::info!(
                "port {}: no other egress program is left; it is no longer suspended",
                attached.name
            );
        } else if found != self.foreign && !found.is_empty() {
            tracing::warn!(
                "port {}: paused: it has {}; {}, and it goes on by itself, or detach it",
                attached.name,
                egress::complaint(&found),
                egress::way_out(&device.name)
            );
        }
        self.foreign = found;
        Ok(())
    }
}

/// A tap that is no port of a bridge any more keeps its last one: scripts take a tap off its bridge
/// before they delete it, and the senders are still behind it.
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

fn follow_name(attached: &Attached, device: &Device) -> Result<()> {
    if device.name == attached.port.ifname()? {
        return Ok(());
    }
    attached.port.set_ifname(&device.name)?;
    tracing::info!("port {} is called {} now", attached.name, device.name);
    Ok(())
}
