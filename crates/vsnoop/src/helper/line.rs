//! Connections in line for credit (flow/incast.h) whose turn no packet brings: nothing else comes through
//! their port, and credit is there because what silent connections owed has been forgotten.

use std::path::PathBuf;

use anyhow::{Context, Result};
use vsnoop_bpf::{Port, Uplink};

use super::frame::{Segment, frame};
use crate::ports::Attached;
use crate::system::netns::Netns;

/// The line of one port.
pub struct Line {
    uplink: Uplink,
    port: Port,
    name: String,
    netns: u64,
    netns_path: Option<PathBuf>,
    /// As of the last time.
    waiting: i32,
}

impl Line {
    /// That of this port, if it has incast control; `known`: the one that was there before.
    pub fn of(attached: &Attached, known: Option<Self>) -> Result<Option<Self>> {
        if attached.meta.uplink == 0 {
            return Ok(None);
        }
        if known.is_some() {
            return Ok(known);
        }
        let netns = attached.meta.netns;
        let Some(uplink) = Uplink::open(netns, attached.meta.uplink)? else { return Ok(None) };
        let port = Port::open(netns, attached.meta.ifindex)?;
        let name = attached.name.clone();
        Ok(Some(Self { uplink, port, name, netns, netns_path: None, waiting: 0 }))
    }

    /// Whoever was in line the last time too has its turn, as far as there is credit.
    pub fn serve(&mut self) {
        let waiting = self.uplink.waiting();
        let stands_still = waiting > 0 && waiting >= self.waiting && self.waiting > 0;
        self.waiting = waiting;
        if stands_still && let Err(error) = self.take_turns() {
            tracing::debug!("port {}: {error:#}", self.name);
        }
    }

    fn take_turns(&mut self) -> Result<()> {
        let port = &self.port;
        let flows = port.flows()?;
        let place = Netns::find_again(self.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        place.run(|| {
            for (key, flow) in flows.iter().filter(|(_, flow)| flow.incast.waiting != 0) {
                if !port.open_window(&frame(key, flow, Segment::ResetSender)?)? {
                    break;
                }
            }
            Ok(())
        })
    }
}
