//! Grants where no packet brings them: windows of waiting connections that incast control has
//! closed (flow/incast.h).
//!
//! A connection in the grant queue waits for an ACK that carries its grant. None comes when no
//! other packet passes its port, while there is credit: the outstanding credit of others has
//! expired, or was returned at another port. Connections that have finished wait until there is
//! credit for all that are silent. When incast control is turned off, all windows are the VMs' own
//! again, and their senders must be told.
//!
//! The kernel keeps those that wait in queues of each port. A look takes a few from their heads,
//! never the whole table of connections, so that its work does not grow with what a VM has opened.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_bpf::types::flow;
use vsnoop_bpf::{GrantQueue, Granted, Uplink};

use super::frame::{Segment, frame};
use crate::ports::Attached;
use crate::system::clock::monotonic_ns;
use crate::system::netns::Netns;

/// The grants of one port.
pub struct PortGrants {
    uplink: Uplink,
    queue: GrantQueue,
    name: String,
    netns: u64,
    netns_path: Option<PathBuf>,
    /// Connections were queued at the last look, and so many grants had been made by then.
    waited: bool,
    grants: u32,
    served_finished: Instant,
    /// The last look made all the grants that it might.
    has_more: bool,
}

/// Between two looks, and while connections are queued.
const PERIOD: Duration = Duration::from_millis(10);
const HURRY: Duration = Duration::from_millis(2);
/// Connections that have finished can wait longer.
const FINISHED_PERIOD: Duration = Duration::from_millis(100);
/// Grants of one port in one look, and of all ports together: some 0.3 ms of the helper's time.
const PORT_GRANTS: usize = 16;
const GRANTS: usize = 64;

/// Serves these ports, beginning with another one each time. When to look again; `None`: there are
/// none.
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
    /// Those of this port, if it has incast control; `known`: what was there before.
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

    /// Where connections were queued the last time too, and no grant was made since, makes grants
    /// as far as there is credit; now and then to those that have finished. How many were offered,
    /// `most` at most.
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
        // Mostly there is no credit; that is seen without a system call.
        if !self.uplink.has_grant(queue.incast(), monotonic_ns()?) {
            return Ok(0);
        }
        let netns = Netns::find_again(self.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        netns.run(|| {
            for offered in 0..most {
                let Some(key) = queue.head()? else { return Ok(offered) };
                // It only has to have the form: whose ACK it becomes the hooks say.
                let ack = frame(&key, &flow::default(), Segment::ResetSender);
                if queue.grant_next(&ack)? == Granted::None {
                    return Ok(offered);
                }
            }
            Ok(most)
        })
    }
}
