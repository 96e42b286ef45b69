//! The tap leaves its network namespace while the host holds data, and comes back: the kernel
//! unbinds the engine's packet socket, so that the engine has to open another.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{BRIDGE, PORT, Topology};
use vsnoop_tests::background::Process::Engine;

use super::still;
use crate::attached;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("hold::moved::a_tap_that_comes_back_gets_what_was_held", there_and_back),
        trial("hold::moved::an_engine_opens_a_tap_that_stays_once", stays),
    ]
}

/// The engine looks for new ports, and at those that it has, every second.
const SEVERAL_LOOKS: Duration = Duration::from_millis(2500);
const TRIES: usize = 20;

fn stays() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = still();
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    for _ in 0..TRIES {
        let engine = Engine.next(None)?;
        let first = packet_sockets(&topology)?;
        std::thread::sleep(SEVERAL_LOOKS);
        let then = packet_sockets(&topology)?;
        // On a busy machine the helper may take it for one that hangs, and start another.
        if Engine.next(None)? == engine {
            ensure!(!first.is_empty(), "the engine has no socket");
            ensure!(then == first, "the engine has opened the tap again");
            return attached.detach();
        }
    }
    bail!("{TRIES} times another engine was started")
}

/// The inodes of the packet sockets of the host.
fn packet_sockets(topology: &Topology) -> Result<Vec<String>> {
    let table = topology.host.run(|| {
        fs::read_to_string("/proc/thread-self/net/packet").context("read the packet sockets")
    })?;
    let inode = |line: &str| line.split_whitespace().last().map(str::to_owned);
    Ok(table.lines().skip(1).filter_map(inode).collect())
}

fn there_and_back() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = still();
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = super::detach::held(&topology, &attached)?;

    topology.host.ip(&format!("link set {PORT} netns {}", topology.client.name()))?;
    // The hooks hold nothing for a tap that the engine cannot reach.
    attached.wait_until("the engine does without the tap", || {
        Ok(attached.hold_text("engine")? == "silent")
    })?;
    topology.client.ip(&format!("link set {PORT} netns {}", topology.host.name()))?;
    topology.host.add_port(BRIDGE, PORT)?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(super::detach::BYTES).with_context(|| attached.describe())?;
    pair.client.send(1000)?;
    pair.vm.receive(1000).with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}
