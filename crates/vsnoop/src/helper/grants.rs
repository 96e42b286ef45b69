//! Grants without a packet: opens windows of waiting connections that incast control has closed
//! (flow/incast.h).
//!
//! A connection in the grant queue waits for an ACK with its grant. The ACK does not come if no
//! packet passes its port while credit is left: the outstanding credit of other connections has
//! expired, or was returned at another port. Finished connections wait until there is credit for
//! all that are silent. When incast control is turned off, all windows are the VMs' own again, and
//! their senders must get an ACK.
//!
//! Each port has queues of waiting connections in the kernel. A round takes a few from their heads,
//! never the whole table of connections, so that its work does not grow with the number of
//! connections of a VM.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_bpf::types::flow;
use vsnoop_bpf::{GrantQueue, Granted, Uplink};
use vsnoop_host::ports::Attached;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netns::Netns;
use vsnoop_upkeep::segment::{Segment, frame};

/// The grants of one port.
pub struct PortGrants {
    uplink: Uplink,
    queue: GrantQueue,
    name: String,
    netns: u64,
    netns_path: Option<PathBuf>,
    /// Connections were queued in the last round; number of grants at that time.
    waited: bool,
    grants: u32,
    served_finished: Instant,
    /// The last round made the most grants allowed.
    has_more: bool,
}

/// Interval of rounds, and the interval while connections are queued.
const PERIOD: Duration = Duration::from_millis(10);
const HURRY: Duration = Duration::from_millis(2);
/// Interval for finished connections.
const FINISHED_PERIOD: Duration = Duration::from_millis(100);
/// Most grants of one port, and of all ports, in one round: some 0.3 ms of the helper's time.
const PORT_GRANTS: usize = 16;
const GRANTS: usize = 64;

/// Serves these ports, starting with another one each time. Returns the time to the next round;
/// `None` without ports.
pub fn serve_all(ports: &mut [&mut PortGrants], first: usize) -> Option<Duration> {
    let mut left = GRANTS;
    let count = ports.len();
    let mut pause = None;
    for at in 0..count {
        let port = &mut ports[(first + at) % count];
        let offered = port.serve(left.min(PORT_GRANTS));
        left = left.saturating_sub(offered);
        pause = pause.into_iter().chain([port.period()]).min();
    }
    pause
}

impl PortGrants {
    /// The grants of a port with incast control; `known`: the previous state.
    pub fn of(attached: &Attached, known: Option<Self>) -> Result<Option<Self>> {
        if attached.meta.uplink == 0 {
            return Ok(None);
        }
        if known.is_some() {
            return Ok(known);
        }
        let Some(uplink) = Uplink::open(attached.meta.netns, attached.meta.uplink)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            uplink,
            queue: attached.port.grant_queue()?,
            name: attached.name.clone(),
            netns: attached.meta.netns,
            netns_path: None,
            waited: false,
            grants: 0,
            served_finished: Instant::now(),
            has_more: false,
        }))
    }

    fn period(&self) -> Duration {
        if self.waited || self.has_more { HURRY } else { PERIOD }
    }

    /// Grants windows as far as there is credit, if connections were queued in the last round too
    /// and no grant was made since; sometimes to finished connections. Returns how many were
    /// offered, at most `most`.
    fn serve(&mut self, most: usize) -> usize {
        let incast = self.queue.incast();
        let (waits, finished) = (incast.queued() > 0, incast.finished() > 0);
        let stands_still = self.waited && waits && incast.grants() == self.grants;
        let is_time = finished && self.served_finished.elapsed() > FINISHED_PERIOD;
        if is_time {
            self.served_finished = Instant::now();
        }
        let mut offered = 0;
        if stands_still || is_time || (self.has_more && (waits || finished)) {
            offered = self.grant(most).unwrap_or_else(|error| {
                tracing::debug!("port {}: {error:#}", self.name);
                0
            });
        }
        self.has_more = offered > 0 && offered == most;
        (self.waited, self.grants) = (waits, self.queue.incast().grants());
        offered
    }

    fn grant(&mut self, most: usize) -> Result<usize> {
        let queue = &self.queue;
        // There is rarely credit; shared memory shows that without a system call.
        if !self.uplink.has_grant(queue.incast(), monotonic_ns()?) {
            return Ok(0);
        }
        let netns = Netns::find_again(self.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        netns.run(|| {
            for offered in 0..most {
                let Some(key) = queue.head()? else { return Ok(offered) };
                // Only the packet's form matters: the hooks choose the connection.
                let ack = frame(&key, &flow::default(), Segment::ResetSender);
                if queue.grant_next(&ack)? == Granted::None {
                    return Ok(offered);
                }
            }
            Ok(most)
        })
    }
}
