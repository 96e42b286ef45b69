//! A second leg: what is behind a VM that forwards.
//!
//! ```text
//!   [near device]--relay: rate, queue, delay--[eth0]--namespace with a transfer server
//! ```
//! The near device is a port of a bridge behind which the VM's second card is, or the second card
//! of a namespace that stands for a VM.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use vsnoop_guest::{server, transfer};

use crate::net::{Net, Netns, TapOptions};
use crate::relay::{Bottleneck, Direction, Faults, Relay, RelayOptions};

/// Addresses of the VM and of the far end, their prefix, and the network.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
pub const PREFIX_LENGTH: u8 = 24;
pub const NETWORK: &str = "10.79.0.0/24";

/// Properties of a leg.
#[derive(Clone, Copy, Debug)]
pub struct LegOptions {
    pub rate_mbit: u64,
    /// Before the link, in each direction.
    pub queue_bytes: u64,
    /// Half of it each way.
    pub rtt: Duration,
}

/// It exists until this is dropped.
#[derive(Debug)]
pub struct Leg {
    // Before its namespace.
    relay: Relay,
    far: Netns,
    counts: Arc<server::Counts>,
}

impl Leg {
    /// Lays a leg from a new device of `near`, which is down at first, and serves transfers at its
    /// other end.
    pub fn lay(net: &Net, near: &Netns, device: &str, options: &LegOptions) -> Result<Self> {
        let far = net.host("far")?;
        let taps = TapOptions::default();
        let relay = near.relay(device, &far, "eth0", &taps, &RelayOptions::default())?;
        let bottleneck = Some(Bottleneck::new(options.rate_mbit, options.queue_bytes));
        let faults = Faults { delay: options.rtt / 2, bottleneck, ..Faults::default() };
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            relay.set_faults(direction, faults.clone());
        }
        far.up_with("eth0", &[(FAR.into(), PREFIX_LENGTH)])?;
        far.ip(&format!("route add default via {NEAR}"))?;
        let counts = Arc::default();
        far.run(|| server::start(Arc::clone(&counts)))?;
        Ok(Self { relay, far, counts })
    }

    /// The transfer server at the far end.
    pub fn server(&self) -> SocketAddr {
        (FAR, transfer::PORT).into()
    }

    pub fn far(&self) -> &Netns {
        &self.far
    }

    /// Bytes of uploads that the server has read.
    pub fn received_bytes(&self) -> u64 {
        self.counts.stats().received_bytes
    }

    /// TCP payload that the VM has put on the leg, lost bytes too.
    pub fn sent_bytes(&self) -> u64 {
        self.relay.counters(Direction::LeftToRight).payload_bytes
    }
}
