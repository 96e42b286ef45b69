//! An engine that hangs: the hooks rely on it no longer, and the helper replaces it.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::Family;

use crate::attached::Attached;
use crate::background::Process::{Engine, Helper};
use crate::pair::Pair;
use crate::scene;
use crate::trial;

/// Tries to see a hanging engine before the helper has replaced it.
const TRIES: usize = 5;
/// Looks at one.
const LOOKS: usize = 5;
/// Longer than an engine may be silent.
const PAUSE: Duration = Duration::from_secs(5);
/// The helper looks once meanwhile.
const ONE_LOOK: Duration = Duration::from_millis(100);
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
    for _ in 0..TRIES {
        let mut pair = Pair::connect(&topology, Family::V4)?;
        topology.guest().set_freeze(Freeze::Now);
        let mut client = pair.client.twin()?;
        let looks = thread::scope(|scope| -> Result<usize> {
            let sending = scope.spawn(move || client.send(MUCH));
            let before = Engine.signal(Signal::SIGSTOP)?;
            let silent = || Ok(attached.hold_text("engine")? == "silent");
            attached.wait_until("the engine is silent", silent)?;
            let looks = looks_while_silent(&attached, before)?;
            Engine.next(Some(before))?;
            attached.wait_until("the next one is heard of", || Ok(!silent()?))?;
            topology.guest().set_freeze(Freeze::Never);
            pair.vm.receive(MUCH).with_context(|| attached.describe())?;
            match sending.join() {
                Ok(sent) => sent.map(|()| looks),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        pair.client.finish()?;
        pair.vm.expect_end()?;
        pair.vm.finish()?;
        pair.client.expect_end()?;
        if looks >= LOOKS {
            attached.until_memory_is_free()?;
            attached.ensure_no_reset()?;
            return attached.detach();
        }
    }
    anyhow::bail!("the helper was too fast, {TRIES} times: nothing was tested")
}

/// Counts the polls without an acknowledgement, until the helper ran.
fn looks_while_silent(attached: &Attached<'_>, engine: i32) -> Result<usize> {
    let acknowledged = attached.counter("early_bytes")?;
    let mut looks = 0;
    loop {
        let now = attached.counter("early_bytes")?;
        // In this order: it was silent all the time.
        if Engine.pid()? != Some(engine) || attached.hold_text("engine")? != "silent" {
            return Ok(looks);
        }
        ensure!(
            now == acknowledged,
            "{} bytes were acknowledged while the engine hung\n{}",
            now - acknowledged,
            attached.describe()
        );
        looks += 1;
    }
}

/// The engine needs no helper to hand over.
fn helper() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    Helper.signal(Signal::SIGSTOP)?;
    let ended = scene::ends_exact(&topology, attached, pair);
    Helper.signal(Signal::SIGCONT)?;
    ended
}

/// Helper and engine stand still, as when the host itself is a VM that is paused, and the helper is
/// the first that goes on.
fn both() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    Helper.signal(Signal::SIGSTOP)?;
    let before = Engine.signal(Signal::SIGSTOP)?;
    thread::sleep(PAUSE);
    Helper.signal(Signal::SIGCONT)?;
    thread::sleep(ONE_LOOK);
    Engine.signal(Signal::SIGCONT)?;
    thread::sleep(AFTER);
    let after = Engine.pid()?;
    ensure!(after == Some(before), "engine {before} was replaced by {after:?}");
    scene::ends_exact(&topology, attached, pair)
}
