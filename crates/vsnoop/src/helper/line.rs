//! Connections whose windows incast control has closed (flow/incast.h), and whose turn no packet brings.
//!
//! Those in line wait for an ACK to travel with, which does not come when nothing else comes through their
//! port: credit is there because what others owed has been forgotten. Those that had nothing to send
//! are shut until there is credit for all that are silent. And when incast control is turned off, all
//! windows are the VMs' own again, of which their senders must be told.

use std::path::PathBuf;
use std::time::{Duration, Instant};

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
    /// In line as of the last time, and what had come through the uplink by then.
    waiting: i32,
    bytes: u64,
    looked_at_shut: Instant,
}

/// Between two looks, and while somebody is in line.
const PERIOD: Duration = Duration::from_millis(10);
const HURRY: Duration = Duration::from_millis(2);
/// Less than this between two looks: the line stands still. At 1 Gb/s a tenth of what could come.
const FEW_BYTES: u64 = 25_000;
/// Those that are shut are in no hurry.
const SHUT_PERIOD: Duration = Duration::from_millis(100);

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
        Ok(Some(Self {
            uplink,
            port,
            name,
            netns,
            netns_path: None,
            waiting: 0,
            bytes: 0,
            looked_at_shut: Instant::now(),
        }))
    }

    /// Whoever was in line the last time too, while next to nothing came in, has its turn, as far as there
    /// is credit, and now and then those that are shut. When to look again.
    pub fn serve(&mut self) -> Duration {
        let (waiting, shut) = (self.uplink.waiting(), self.uplink.shut());
        let bytes = self.uplink.bytes();
        let stands_still = self.waiting > 0 && waiting > 0 && bytes - self.bytes < FEW_BYTES;
        (self.waiting, self.bytes) = (waiting, bytes);
        let looks_at_shut = shut > 0 && self.looked_at_shut.elapsed() > SHUT_PERIOD;
        if looks_at_shut {
            self.looked_at_shut = Instant::now();
        }
        if (stands_still || looks_at_shut)
            && let Err(error) = self.take_turns(looks_at_shut)
        {
            tracing::debug!("port {}: {error:#}", self.name);
        }
        if waiting > 0 { HURRY } else { PERIOD }
    }

    fn take_turns(&mut self, of_shut_too: bool) -> Result<()> {
        let port = &self.port;
        let flows = port.flows()?;
        let place = Netns::find_again(self.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        place.run(|| {
            let waiting = |in_line| {
                flows.iter().filter(move |(_, flow)| match u32::from(flow.incast.waiting) {
                    incast_waiting::INCAST_NOT_WAITING => false,
                    state => (state == incast_waiting::INCAST_IN_LINE) == in_line,
                })
            };
            for (key, flow) in waiting(true) {
                let ack = frame(key, flow, Segment::ResetSender)?;
                if !port.open_window(&ack, incast_waiting::INCAST_IN_LINE)? {
                    break;
                }
            }
            for (key, flow) in waiting(false).filter(|_| of_shut_too) {
                port.open_window(
                    &frame(key, flow, Segment::ResetSender)?,
                    incast_waiting::INCAST_SHUT,
                )?;
            }
            Ok(())
        })
    }
}
