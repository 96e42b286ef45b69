//! The path between client and bridge.
//!
//! A veth is as short as a path can be. A path with delay or loss is a
//! [`Relay`](crate::relay::Relay) between two taps, on a real-time thread of its own: super-packets
//! stay whole, what waits is bounded.
//!
//! The client has the same MAC and addresses on every path, so that machines which know it go on
//! finding it.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{BRIDGE, CurrentPath, PREFIX_LENGTH, Stage, address};
use crate::net::TapOptions;
use crate::relay::{Bottleneck, Direction, Faults, RelayOptions};

const UPLINK: &str = "vslab-up";
const CLIENT_DEVICE: &str = "vslab-client";
const CLIENT_MAC: [u8; 6] = [2, 0x76, 0x73, 0, 0, 3];

/// A link of a certain rate with a queue before it, in each direction of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathLink {
    #[serde(rename = "path_rate_mbit")]
    pub rate_mbit: u64,
    #[serde(rename = "path_queue_bytes")]
    pub queue_bytes: u64,
}

/// Parameters of a path; the default is a veth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathOptions {
    /// Half of it each way.
    pub rtt: Duration,
    /// Share of MTU-sized segments that are lost, each way.
    pub segment_loss: f64,
    pub link: Option<PathLink>,
}

impl Stage {
    /// Lays a path. No connection should be open.
    pub fn set_path(&mut self, path: &PathOptions) -> Result<()> {
        let loss = path.segment_loss;
        ensure!((0.0..=1.0).contains(&loss), "a path cannot lose {loss} of its segments");
        if *path == PathOptions::default() {
            return self.lay_veth();
        }
        self.take_up()?;
        let (client, host, taps) = (&self.client, &self.host, TapOptions::default());
        let options =
            RelayOptions { seed: fastrand::u64(..), realtime: true, ..RelayOptions::default() };
        let relay = client.relay(CLIENT_DEVICE, host, UPLINK, &taps, &options)?;
        let bottleneck = path.link.map(|link| Bottleneck::new(link.rate_mbit, link.queue_bytes));
        let delay = path.rtt / 2;
        let faults = Faults { delay, segment_loss: loss, bottleneck, ..Faults::default() };
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            relay.set_faults(direction, faults.clone());
        }
        self.path = CurrentPath::Relayed(relay);
        self.connect_ends()
    }

    /// Lays the shortest path.
    pub(super) fn lay_veth(&mut self) -> Result<()> {
        self.take_up()?;
        self.host.veth(UPLINK, &self.client, CLIENT_DEVICE)?;
        self.path = CurrentPath::Veth;
        self.connect_ends()
    }

    /// Cores that process what host and client receive by the path.
    pub(super) fn steer(&self, host: Option<usize>, client: Option<usize>) -> Result<()> {
        self.host.steer(UPLINK, host)?;
        self.client.steer(CLIENT_DEVICE, client)
    }

    fn take_up(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.path, CurrentPath::None) {
            CurrentPath::Veth => self.host.delete(UPLINK),
            // Its taps vanish as they are closed.
            CurrentPath::Relayed(relay) => {
                drop(relay);
                Ok(())
            }
            CurrentPath::None => Ok(()),
        }
    }

    fn connect_ends(&self) -> Result<()> {
        self.client.set_mac(CLIENT_DEVICE, CLIENT_MAC)?;
        self.client.add_address(CLIENT_DEVICE, address(false, 1).into(), PREFIX_LENGTH)?;
        if self.tuned {
            self.client.add_address(CLIENT_DEVICE, address(true, 1).into(), PREFIX_LENGTH)?;
        }
        self.client.up(CLIENT_DEVICE)?;
        self.host.add_port(BRIDGE, UPLINK)
    }

    /// Frames that the path has lost although it was not to: its queue was full.
    pub fn path_overflows(&self) -> u64 {
        let CurrentPath::Relayed(relay) = &self.path else { return 0 };
        let lost = |direction| relay.counters(direction).overflowed;
        lost(Direction::LeftToRight) + lost(Direction::RightToLeft)
    }
}
