//! How connections end, or go on one way only, while the host holds data of them.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{Family, Topology, TopologyOptions};

use super::still;
use crate::attached::{self, Attached};
use crate::case::Case;
use crate::pair::Pair;
use crate::trial;

const BYTES: u64 = 1_000_000;

type Test = fn(&Topology, &Attached<'_>, Pair) -> Result<()>;

pub fn trials() -> Vec<Trial> {
    let tests: [(&str, Test); 7] = [
        ("a_sender_that_aborts_resets_the_vm", aborted),
        ("a_vm_that_aborts_resets_its_sender", vm_aborts),
        ("a_fin_waits_behind_held_data", fin),
        ("a_fin_that_comes_late_follows_what_is_held", late_fin),
        ("the_vm_sends_on_after_the_senders_fin", half_closed_by_sender),
        ("the_sender_sends_on_after_the_vms_fin", half_closed_by_vm),
        ("the_vm_sends_while_its_own_window_is_full", reverse),
    ];
    let forms = [
        ("ipv4_super_packets", Family::V4, Offloads::SUPER_PACKETS),
        ("ipv6_mtu_sized", Family::V6, Offloads::NONE),
    ];
    let mut trials = Vec::new();
    for (form, family, offloads) in forms {
        for (name, test) in tests {
            trials.push(trial(format!("hold::ends::{name}_{form}"), move || {
                with_held_data(family, offloads, test)
            }));
        }
    }
    trials
}

/// Runs `test` on a connection whose VM stands still, [`BYTES`] of which the host has acknowledged
/// and mostly holds.
fn with_held_data(family: Family, offloads: Offloads, test: Test) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let base = still();
    let case = Case {
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        ..base
    };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, family)?;
    // It has accepted: until it says something the host could not know.
    pair.vm.send(1)?;
    pair.client.receive(1)?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > BYTES / 2, "only {held} bytes are held\n{}", attached.describe());
    test(&topology, &attached, pair).with_context(|| attached.describe())?;
    topology.guest().set_freeze(Freeze::Never);
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// The sender resets: the VM reads a part of its bytes at most, and then the reset.
fn aborted(topology: &Topology, attached: &Attached<'_>, mut pair: Pair) -> Result<()> {
    pair.client.abort()?;
    // The held bytes are no longer needed.
    attached.until_memory_is_free()?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.expect_reset().context("at the VM")
}

fn vm_aborts(topology: &Topology, _: &Attached<'_>, mut pair: Pair) -> Result<()> {
    pair.vm.abort()?;
    topology.guest().set_freeze(Freeze::Never);
    pair.client.expect_reset().context("at the sender")
}

fn fin(topology: &Topology, _: &Attached<'_>, mut pair: Pair) -> Result<()> {
    pair.client.finish()?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES)?;
    pair.vm.expect_end().context("at the VM")?;
    pair.vm.finish()?;
    pair.client.expect_end().context("at the sender")
}

/// The VM's window is closed, so that the host holds data while both run.
fn late_fin(topology: &Topology, attached: &Attached<'_>, mut pair: Pair) -> Result<()> {
    topology.guest().set_freeze(Freeze::Never);
    pair.client.send(1)?;
    pair.client.finish()?;
    pair.client.send(1).err().context("a direction that was ended takes more")?;
    pair.vm.receive(BYTES + 1)?;
    pair.vm.expect_end().context("at the VM")?;
    ensure!(attached.counter("resets_sent")? == 0, "somebody was reset");
    pair.vm.finish()?;
    pair.client.expect_end().context("at the sender")
}

fn half_closed_by_sender(topology: &Topology, _: &Attached<'_>, mut pair: Pair) -> Result<()> {
    pair.client.finish()?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES)?;
    pair.vm.expect_end().context("at the VM")?;
    let mut vm = pair.vm.twin()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || vm.send(BYTES).and_then(|()| vm.finish()));
        pair.client.receive(BYTES)?;
        join(sending)
    })?;
    pair.client.expect_end().context("at the sender")
}

/// The VM closes its direction first.
fn half_closed_by_vm(topology: &Topology, attached: &Attached<'_>, mut pair: Pair) -> Result<()> {
    pair.vm.finish()?;
    topology.guest().set_freeze(Freeze::Never);
    pair.client.expect_end().context("at the sender")?;
    pair.vm.receive(BYTES)?;
    let held = attached.counter("held_bytes")?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged()?;
    ensure!(attached.counter("held_bytes")? > held, "the second half was not held");
    pair.client.finish()?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES)?;
    pair.vm.expect_end().context("at the VM")
}

/// The VM's application writes before it reads: the sender's ACKs of these bytes must overtake the
/// held bytes.
fn reverse(topology: &Topology, attached: &Attached<'_>, mut pair: Pair) -> Result<()> {
    const ANSWER: u64 = 20 * BYTES;
    topology.guest().set_freeze(Freeze::Never);
    let mut vm = pair.vm.twin()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || vm.send(ANSWER));
        pair.client.receive(ANSWER)?;
        join(sending)
    })?;
    restarted(|| pair.vm.socket.peek(&mut [0])).context("waiting for what the VM has")?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > 0, "nothing was held any more while the VM sent");
    pair.vm.receive(BYTES)
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
