//! An engine that hangs: the hooks rely on it no longer, and the helper replaces it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::Family;

use crate::background::Process::{Engine, Helper};
use crate::pair::Pair;
use crate::scene;
use crate::trial;

/// Looks at a hanging engine.
const LOOKS: usize = 5;
/// Longer than an engine may be silent.
const PAUSE: Duration = Duration::from_secs(5);
/// The helper looks once meanwhile.
const ONE_LOOK: Duration = Duration::from_millis(100);
/// The helper looks every 250 ms, so once meanwhile; on a busy machine it may be longer, and then
/// another try is made.
const MOST_APART: Duration = Duration::from_millis(200);
const TRIES: usize = 20;
/// Several looks of the helper.
const AFTER: Duration = Duration::from_secs(2);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("stopped::a_hanging_engine_is_replaced_and_the_transfer_is_exact", replaced),
        trial("stopped::nothing_is_held_on_behalf_of_a_hanging_engine", not_held),
        trial("stopped::a_hanging_helper_keeps_nobody_from_working", helper),
        trial("stopped::an_engine_is_not_replaced_after_a_pause_of_the_machine", both),
    ]
}

fn replaced() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    let before = Engine.signal(Signal::SIGSTOP)?;
    Engine.next(Some(before))?;
    scene::ends_exact(&topology, attached, pair)
}

/// While the engine is silent, not a byte beyond the VM's window is acknowledged, and the VM stands
/// still: not a byte.
fn not_held() -> Result<()> {
    const MUCH: u64 = 12_000_000;
    let topology = scene::still().build()?;
    let mut attached = scene::still().attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    topology.guest().set_freeze(Freeze::Now);
    let mut client = pair.client.twin()?;
    thread::scope(|scope| -> Result<()> {
        let sending = scope.spawn(move || client.send(MUCH));
        // It would replace the engine.
        let helper = Helper.stop()?;
        let before = Engine.next(None)?;
        let _engine = Engine.stop()?;
        let is_silent = || Ok(attached.hold_text("engine")? == "silent");
        attached.wait_until("the engine is silent", is_silent)?;
        let acknowledged = attached.counter("early_bytes")?;
        for _ in 0..LOOKS {
            let more = attached.counter("early_bytes")? - acknowledged;
            ensure!(more == 0, "{more} bytes acknowledged meanwhile\n{}", attached.describe());
        }
        ensure!(is_silent()?, "it went on");
        drop(helper);
        Engine.next(Some(before))?;
        attached.wait_until("the next one is heard of", || Ok(!is_silent()?))?;
        topology.guest().set_freeze(Freeze::Never);
        pair.vm.receive(MUCH).with_context(|| attached.describe())?;
        sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    pair.client.finish()?;
    pair.vm.expect_end()?;
    pair.vm.finish()?;
    pair.client.expect_end()?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// The engine needs no helper to hand over.
fn helper() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    let _helper = Helper.stop()?;
    scene::ends_exact(&topology, attached, pair)
}

/// Helper and engine stand still, as when the host itself is a VM that is paused, and the helper is
/// the first that goes on.
fn both() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    let mut paused = pause_both()?;
    for _ in 1..TRIES {
        if paused.apart <= MOST_APART {
            break;
        }
        paused = pause_both()?;
    }
    let Paused { apart, before, after } = paused;
    ensure!(apart <= MOST_APART, "the engine went on {apart:?} after the helper, {TRIES} times");
    ensure!(after == Some(before), "engine {before} was replaced by {after:?}");
    scene::ends_exact(&topology, attached, pair)
}

/// The outcome of a pause of helper and engine.
struct Paused {
    /// The time from when the helper went on until the engine did.
    apart: Duration,
    /// The engine's process.
    before: i32,
    after: Option<i32>,
}

fn pause_both() -> Result<Paused> {
    let helper = Helper.stop()?;
    let before = Engine.next(None)?;
    let engine = Engine.stop()?;
    thread::sleep(PAUSE);
    let since = Instant::now();
    drop(helper);
    thread::sleep(ONE_LOOK);
    drop(engine);
    let apart = since.elapsed();
    thread::sleep(AFTER);
    Ok(Paused { apart, before, after: Engine.pid()? })
}
