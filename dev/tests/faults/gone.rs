//! Neither engine nor hooks can hand over held bytes: both ends of connections are reset, and
//! counted.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_bpf::types::HOLD_ENGINE_GONE_S;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::Topology;

use crate::attached::Attached;
use crate::background::Process::{Engine, Helper};
use crate::host;
use crate::pair::Pair;
use crate::scene;
use crate::trial;

/// The engine gives a sign of life every 50 ms.
const LATELY: Duration = Duration::from_millis(500);
/// Interval between packets of a sender that continues.
const PERIOD: Duration = Duration::from_millis(500);
const FOR_LONG: Duration = Duration::from_secs(HOLD_ENGINE_GONE_S as u64 + 5);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("gone::without_an_engine_the_helper_resets_both_ends", helper_is_left),
        trial("gone::without_anybody_the_next_packet_resets_both_ends", nobody_is_left),
        trial("gone::without_anybody_an_idle_connection_waits_for_the_next_command", for_long),
        trial("gone::off_resets_what_only_the_host_had", off),
    ]
}

/// No engine can start, since the program was deleted. Neither end sends anything.
fn helper_is_left() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    // On a busy machine the engine may have had no CPU for long: that counts as well.
    attached.wait_until("the engine has just been heard of", || {
        Ok(attached.hold("engine_silent_ns")? < LATELY.as_nanos() as u64)
    })?;
    let program = Removed::new()?;
    let since = Instant::now();
    Engine.kill_all()?;
    let told = both_are_told(&topology, pair);
    drop(program);
    told.with_context(|| attached.describe())?;
    let least = Duration::from_secs(u64::from(HOLD_ENGINE_GONE_S) - 1);
    ensure!(
        since.elapsed() >= least,
        "reset after {:?}: an engine could have come",
        since.elapsed()
    );
    ensure!(attached.resets("engine_gone")? == 1, "not counted\n{}", attached.describe());
    clean(attached)
}

/// Neither the helper nor the engine runs; the sender continues to send.
fn nobody_is_left() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let mut pair = scene::held(&topology, &attached)?;
    let program = Removed::new()?;
    // Both are killed, since each starts the other.
    Helper.kill_all()?;
    Engine.kill_all()?;
    // Until the hooks know that no engine will come, the sender retransmits; then its socket
    // reports the reset.
    let mut client = pair.client.twin()?;
    while client.send(1000).is_ok() {
        std::thread::sleep(PERIOD);
    }
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.expect_reset().context("the VM")?;
    drop(program);
    ensure!(attached.counter("reset_without_engine")? == 1, "not counted\n{}", attached.describe());
    clean(attached)
}

/// Neither runs, and neither end sends anything, for longer than held bytes wait where no engine
/// can be started. The helper that the next command starts has not tried yet.
fn for_long() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    let program = Removed::new()?;
    Helper.kill_all()?;
    Engine.kill_all()?;
    std::thread::sleep(FOR_LONG);
    drop(program);
    attached.run(&["status"])?;
    // A packet before its first sign of life would reset both ends.
    attached.wait_until("an engine is there", || Ok(attached.hold_text("engine")? == "alive"))?;
    scene::ends_exact(&topology, attached, pair)
}

/// `off` does not wait for the engine.
fn off() -> Result<()> {
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    attached.turn_all_off()?;
    both_are_told(&topology, pair)
}

fn both_are_told(topology: &Topology, mut pair: Pair) -> Result<()> {
    pair.client.expect_reset().context("the sender")?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.expect_reset().context("the VM")
}

fn clean(mut attached: Attached<'_>) -> Result<()> {
    attached.run(&["status"])?;
    Engine.next(None)?;
    attached.until_memory_is_free()?;
    attached.detach()
}

/// The program, gone until this is dropped.
struct Removed;

impl Removed {
    fn new() -> Result<Self> {
        fs::remove_file(host::program()).context("remove the program")?;
        Ok(Self)
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        if let Err(error) = host::original().and_then(|program| host::install(&program)) {
            eprintln!("{error:#}");
        }
    }
}
