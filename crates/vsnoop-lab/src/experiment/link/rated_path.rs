//! A path between the hosts that has a rate, a delay and a queue.

use std::time::Duration;

use serde::Deserialize;
use vsnoop_testbed::relay::{Bottleneck, Faults};

use super::rig;
use crate::results::Cell;
use crate::results::link::{Content, LinkCell};

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatedPath {
    rate_mbit: u64,
    one_way_ms: f64,
    queue_bytes: u64,
}

impl RatedPath {
    /// Of each way.
    pub fn faults(&self, loss_percent: f64) -> Faults {
        Faults {
            loss: loss_percent / 100.0,
            delay: Duration::from_secs_f64(self.one_way_ms / 1e3),
            bottleneck: Some(Bottleneck::new(self.rate_mbit, self.queue_bytes)),
            ..Faults::default()
        }
    }

    /// The cell of a stream over it.
    pub fn cell(&self, content: Content, loss_percent: f64) -> Cell {
        let about = LinkCell { rate_mbit: Some(self.rate_mbit), offloads: true, content };
        rig::cell(about, 2.0 * self.one_way_ms, loss_percent)
    }
}
