//! Pausing, detaching and losing a port whose hold has data in it.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{Family, PORT, Topology};
use vsnoop_testbed::vsnoop::PATIENTLY;

use super::still;
use crate::attached::{self, Attached};
use crate::case::{Case, SHARING_A_CORE};
use crate::pair::Pair;
use crate::trial;

pub(super) const BYTES: u64 = 1_000_000;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("hold::detach::pause_waits_until_the_vm_has_everything", pause),
        trial("hold::detach::pause_fails_while_the_vm_stands_still", pause_in_vain),
        trial("hold::detach::pause_and_resume_in_mid_stream", in_mid_stream),
        trial("hold::detach::detach_waits_until_the_vm_has_everything", detach),
        trial("hold::detach::detach_from_a_vm_that_stands_still_resets_both_ends", || {
            frozen(|attached| attached.run(&["detach", PORT, "--timeout", "1"]).map(drop))
        }),
        trial("hold::detach::a_deleted_tap_resets_senders", || deleted_tap(false)),
        trial("hold::detach::detaching_a_deleted_tap_resets_senders", || deleted_tap(true)),
    ]
}

/// A connection whose VM stands still, and most of whose data the host holds.
pub(super) fn held(topology: &Topology, attached: &Attached<'_>) -> Result<Pair> {
    let mut pair = Pair::connect(topology, Family::V4)?;
    topology.guest().set_freeze(Freeze::Now);
    send_held(&mut pair, attached)?;
    Ok(pair)
}

fn send_held(pair: &mut Pair, attached: &Attached<'_>) -> Result<()> {
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > BYTES / 2, "only {held} bytes are held\n{}", attached.describe());
    Ok(())
}

/// Two in turn: resumed, the port holds as before.
fn pause() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let topology = still().build()?;
    let mut attached = still().attach(&topology)?;
    let mut pair = held(&topology, &attached)?;
    for again in [true, false] {
        // In a moment of the wait.
        std::thread::scope(|scope| -> Result<()> {
            let pausing = scope.spawn(|| attached.run(&["pause", PORT, "--timeout", "60"]));
            attached.wait_until("the port is paused", || {
                Ok(attached.run(&["status", PORT, "--json"])?.contains("\"paused\""))
            })?;
            ensure!(!pausing.is_finished(), "pause waited for nothing");
            topology.guest().set_freeze(Freeze::Never);
            // The application need not have read the bytes that the VM acknowledged.
            pair.vm.receive(BYTES)?;
            match pausing.join() {
                Ok(paused) => paused.map(drop),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
        .with_context(|| attached.describe())?;
        for left in ["held_bytes", "held_flows"] {
            ensure!(attached.hold(left)? == 0, "paused with {left}\n{}", attached.describe());
        }
        // Paused, nothing is held: the VM answers itself.
        let held = attached.counter("held_bytes")?;
        pair.client.send(BYTES)?;
        pair.vm.receive(BYTES)?;
        ensure!(attached.counter("held_bytes")? == held, "a paused port holds data");
        attached.run(&["resume", PORT])?;
        if again {
            pair.client.until_acknowledged()?;
            topology.guest().set_freeze(Freeze::Now);
            send_held(&mut pair, &attached)?;
        }
    }
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// Before a migration the operator is warned that the host holds data of the VM; none is lost.
fn pause_in_vain() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let topology = still().build()?;
    let mut attached = still().attach(&topology)?;
    let mut pair = held(&topology, &attached)?;
    let error = attached
        .run(&["pause", PORT, "--timeout", "1"])
        .err()
        .context("pause claims to have drained a VM that stands still")?;
    ensure!(format!("{error:#}").contains("still on their way"), "{error:#}");
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// Under full traffic both ways.
fn in_mid_stream() -> Result<()> {
    let case = Case { freezes: &[SHARING_A_CORE], ..still() };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    case.run_in_steps(&mut attached, &topology, 4, 500_000, |attached| {
        attached.run(&[&["pause", PORT], PATIENTLY].concat())?;
        attached.run(&["resume", PORT]).map(drop)
    })?;
    topology.guest().set_freeze(Freeze::Never);
    if attached.has_hold() {
        attached.ensure_held()?;
        attached.until_memory_is_free()?;
        attached.ensure_no_reset()?;
    }
    attached.detach()
}

fn detach() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let topology = still().build()?;
    let mut attached = still().attach(&topology)?;
    let mut pair = held(&topology, &attached)?;
    // Its application reads in its own time; the VM's window is closed until then.
    topology.guest().set_freeze(Freeze::Never);
    let mut vm = pair.vm.twin()?;
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || -> Result<()> {
            for _ in 0..100 {
                vm.receive(BYTES / 100)?;
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Ok(())
        });
        attached.detach()?;
        match reading.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    pair.client.send(1000)?;
    pair.client.until_acknowledged()
}

/// Removes the port without waiting for the VM: bytes that only the host had are lost.
fn frozen(remove: impl FnOnce(&Attached<'_>) -> Result<()>) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let topology = still().build()?;
    let mut attached = still().attach(&topology)?;
    let mut pair = held(&topology, &attached)?;
    remove(&attached)?;
    attached.forget();
    pair.client.expect_reset().context("the sender")?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.expect_reset().context("the VM")
}

/// With `detach` the operator is faster than the helper.
fn deleted_tap(detach: bool) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let topology = still().build()?;
    let mut attached = still().attach(&topology)?;
    let mut pair = held(&topology, &attached)?;
    topology.host.delete(PORT)?;
    if detach {
        // The helper may have been faster after all; then there is nothing left to detach.
        let _ = attached.run(&["detach", PORT]);
    }
    attached.forget();
    pair.client.expect_reset()
}
