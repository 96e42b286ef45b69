//! Connections whose windows incast control has closed (flow/incast.h), and whose turn no packet brings.
//!
//! Those in line wait for an ACK to travel with, which does not come when nothing else comes through their
//! port: credit is there because what others owed has been forgotten. Those that had nothing to send
//! are shut until there is credit for all that are silent. And when incast control is turned off, all
//! windows are the VMs' own again, of which their senders must be told.

use std::path::PathBuf;

use anyhow::{Context, Result};
use vsnoop_bpf::types::incast_waiting;
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
    /// In line as of the last time.
    waiting: i32,
    looks: u32,
}

/// Those that are shut are in no hurry: every so many looks.
const SHUT_LOOKS: u32 = 10;

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
        Ok(Some(Self { uplink, port, name, netns, netns_path: None, waiting: 0, looks: 0 }))
    }

    /// Whoever was in line the last time too has its turn, as far as there is credit, and now and then
    /// those that are shut.
    pub fn serve(&mut self) {
        let (waiting, shut) = (self.uplink.waiting(), self.uplink.shut());
        let stands_still = self.waiting > 0 && waiting >= self.waiting;
        self.waiting = waiting;
        self.looks = self.looks.wrapping_add(1);
        let looks_at_shut = shut > 0 && self.looks.is_multiple_of(SHUT_LOOKS);
        if (stands_still || looks_at_shut)
            && let Err(error) = self.take_turns(looks_at_shut)
        {
            tracing::debug!("port {}: {error:#}", self.name);
        }
    }

    fn take_turns(&mut self, of_shut_too: bool) -> Result<()> {
        let port = &self.port;
        let flows = port.flows()?;
        let place = Netns::find_again(self.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        place.run(|| {
            for state in [incast_waiting::INCAST_IN_LINE, incast_waiting::INCAST_SHUT] {
                if state == incast_waiting::INCAST_SHUT && !of_shut_too {
                    continue;
                }
                for (key, flow) in flows.iter().filter(|(_, f)| u32::from(f.incast.waiting) == state) {
                    if !port.open_window(&frame(key, flow, Segment::ResetSender)?)? {
                        break;
                    }
                }
            }
            Ok(())
        })
    }
}
