//! A VM and its client, in the machine: connections that are verified byte by byte, from the start
//! until they are told to stop.
//!
//! One connection lasts all the time, others come and go beside it. The VM runs only half of the
//! time, so that the host acknowledges for it. A directory is the interface: `ready` has the name
//! of the host's namespace once its tap is there, `stop` is the order to end the connections,
//! `result` says how many were complete, and how many broken and why; `leave` is the order to end.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::stream::{Outcome, Stream, StreamPlan};
use vsnoop_testbed::topology::{Topology, TopologyOptions};

const PREFIX: &str = "vspkg-";
const FREEZE: Freeze =
    Freeze::Periodic { frozen: Duration::from_millis(40), period: Duration::from_millis(80) };
const LONG_BYTES: u64 = 32_000_000;
const LONG_STEP_BYTES: u64 = 100_000;
const SHORT_BYTES: u64 = 300_000;
const ANSWER_BYTES: u64 = 10_000;
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub fn run(dir: &Path) -> Result<()> {
    let options = TopologyOptions { prefix: PREFIX.to_owned(), ..TopologyOptions::default() };
    let topology = Topology::build(&options)?;
    topology.guest().set_freeze(FREEZE);
    write(dir, "ready", topology.host.name())?;
    let mut tally = Tally::default();
    let long = Stream::start(
        &topology,
        &StreamPlan {
            to_vm_bytes: LONG_BYTES,
            // Readers at both ends take a minute without a byte for a hang.
            from_vm_bytes: LONG_BYTES,
            pause_every_bytes: Some(LONG_STEP_BYTES),
            ..StreamPlan::default()
        },
    )?;
    while !dir.join("stop").exists() {
        let plan = StreamPlan {
            to_vm_bytes: SHORT_BYTES,
            from_vm_bytes: ANSWER_BYTES,
            ..StreamPlan::default()
        };
        tally.add(Stream::run(&topology, &plan));
        // One that was reset comes to no pause.
        if let Err(error) = long.wait_paused() {
            tally.broken.push(format!("the long one: {error:#}"));
            break;
        }
        long.step();
    }
    tally.add(long.finish());
    write(dir, "result", &tally.text())?;
    // The tap is looked at without traffic.
    while !dir.join("leave").exists() {
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

#[derive(Default)]
struct Tally {
    complete: usize,
    broken: Vec<String>,
}

impl Tally {
    fn add(&mut self, outcome: Result<Outcome>) {
        match outcome {
            Ok(outcome) if outcome.is_complete() => self.complete += 1,
            Ok(outcome) => self.broken.push(format!("{outcome:?}")),
            Err(error) => self.broken.push(format!("{error:#}")),
        }
    }

    fn text(&self) -> String {
        let Self { complete, broken } = self;
        format!("{complete} complete, {} broken\n{}\n", broken.len(), broken.join("\n"))
    }
}

/// The file appears at once, whole.
fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let partial = dir.join(format!("{name}.partial"));
    fs::write(&partial, text).with_context(|| format!("write {}", partial.display()))?;
    fs::rename(&partial, dir.join(name)).with_context(|| format!("make {name}"))
}
