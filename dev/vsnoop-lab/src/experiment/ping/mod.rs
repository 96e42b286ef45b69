//! The runner `ping`: round trips of ICMP echoes from the client to VMs that share a core.

use std::ops::Range;

use anyhow::Result;
use serde::Deserialize;
use vsnoop_testbed::guest;
use vsnoop_testbed::stage::vm_address;
use vsnoop_testbed::vm::Begin;

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::lab::guest_image;
use super::rounds::Trial;
use crate::results::{Label, Sample, ms};

/// After an answer.
const GAP_MS: Range<u64> = 20..170;
/// A sample of this kind is a turn of a VM, with the time that it has waited for it.
const TURN: &str = "turn";
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Pings of a round.
    pings: u16,
}

pub fn run(task: Task) -> Result<()> {
    let Settings { pings } = task.plan()?.settings()?;
    on_stages(task, guest_image(guest::Options::default())?, &mut Pings { pings })
}

struct Pings {
    pings: u16,
}

impl Measure for Pings {
    fn measure(&mut self, ground: &Ground, _: Trial<Configuration>) -> Result<Vec<Sample>> {
        let to = vm_address(ground.machine, false);
        let times = ground.stage.client().ping_with_gaps(to, self.pings, GAP_MS)?;
        Ok(times.into_iter().map(|time| Sample::with([("rtt_ms", ms(time))])).collect())
    }

    fn turns(&mut self, begun: &[Begin]) -> Vec<Sample> {
        let what = Label::from(TURN).ok();
        let waited = |begin: &Begin| Sample::with([("wait_ms", ms(begin.waited))]);
        begun.iter().map(|begin| Sample { what, ..waited(begin) }).collect()
    }
}
