//! Connections whose windows incast control has closed (flow/incast.h), and whose turn no packet brings.
//!
//! Those in line wait for an ACK to travel with, which does not come when nothing else comes
//! through their port: credit is there because what others owed has been forgotten, or paid back at
//! another port. Those that had nothing to send are shut until there is credit for all that are
//! silent. And when incast control is turned off, all windows are the VMs' own again, of which
//! their senders must be told.
//!
//! The kernel keeps who waits in queues of each port. A look takes a few turns from their heads,
//! never the whole table of connections, so that its work does not grow with what a VM has opened.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_bpf::types::flow;
use vsnoop_bpf::{Line as Queues, Taken, Uplink};

use super::frame::{Segment, frame};
use crate::ports::Attached;
use crate::system::clock::monotonic_ns;
use crate::system::netns::Netns;

/// The line of one port.
pub struct Line {
    uplink: Uplink,
    queues: Queues,
    name: String,
    netns: u64,
    netns_path: Option<PathBuf>,
    /// Somebody was in line at the last look, and so many turns had been taken by then.
    waited: bool,
    turns: u32,
    looked_at_shut: Instant,
    /// The last look took all the turns that it might.
    has_more: bool,
}

/// Between two looks, and while somebody is in line.
const PERIOD: Duration = Duration::from_millis(10);
const HURRY: Duration = Duration::from_millis(2);
/// Those that are shut are in no hurry.
const SHUT_PERIOD: Duration = Duration::from_millis(100);
/// Turns of one port in one look, and of all ports together: some 0.3 ms of the helper's time.
const PORT_TURNS: usize = 16;
const TURNS: usize = 64;

/// Looks at these lines, beginning with another one each time, and has whoever waits take turns.
/// When to look again; `None`: there are none.
pub fn serve_all(lines: &mut [&mut Line], first: usize) -> Option<Duration> {
    let mut left = TURNS;
    let count = lines.len();
    let mut pause = None;
    for at in 0..count {
        let line = &mut lines[(first + at) % count];
        let taken = line.serve(left.min(PORT_TURNS));
        left = left.saturating_sub(taken);
        pause = pause.into_iter().chain([line.period()]).min();
    }
    pause
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
        let Some(uplink) = Uplink::open(attached.meta.netns, attached.meta.uplink)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            uplink,
            queues: attached.port.line()?,
            name: attached.name.clone(),
            netns: attached.meta.netns,
            netns_path: None,
            waited: false,
            turns: 0,
            looked_at_shut: Instant::now(),
            has_more: false,
        }))
    }

    fn period(&self) -> Duration {
        if self.waited || self.has_more { HURRY } else { PERIOD }
    }

    /// Where somebody was in line the last time too, and nobody has had a turn since, those in line
    /// have turns as far as there is credit; now and then those that are shut. How many were
    /// offered, `most` at most.
    fn serve(&mut self, most: usize) -> usize {
        let incast = self.queues.incast();
        let (waits, shut, turns) = (incast.waiting() > 0, incast.shut() > 0, incast.turns());
        let stands_still = self.waited && waits && turns == self.turns;
        let is_time = shut && self.looked_at_shut.elapsed() > SHUT_PERIOD;
        if is_time {
            self.looked_at_shut = Instant::now();
        }
        let mut offered = 0;
        if stands_still || is_time || (self.has_more && (waits || shut)) {
            offered = self.take_turns(most).unwrap_or_else(|error| {
                tracing::debug!("port {}: {error:#}", self.name);
                0
            });
        }
        self.has_more = offered > 0 && offered == most;
        (self.waited, self.turns) = (waits, self.queues.incast().turns());
        offered
    }

    fn take_turns(&mut self, most: usize) -> Result<usize> {
        let queues = &self.queues;
        // Mostly there is no credit; that is seen without a system call.
        if !self.uplink.has_turn(queues.incast(), monotonic_ns()?) {
            return Ok(0);
        }
        let place = Netns::find_again(self.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        place.run(|| {
            for offered in 0..most {
                let Some(key) = queues.head()? else { return Ok(offered) };
                // It only has to have the form: whose ACK it becomes the hooks say.
                let ack = frame(&key, &flow::default(), Segment::ResetSender)?;
                if queues.take_turn(&ack)? == Taken::Nobody {
                    return Ok(offered);
                }
            }
            Ok(most)
        })
    }
}
