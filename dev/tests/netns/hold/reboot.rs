//! A VM that is reset while the host holds data for it: its new TCP knows none of the connections,
//! and answers with RST.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{Family, Topology};

use super::still;
use crate::attached::{self, Attached};
use crate::pair::Pair;
use crate::trial;

const BYTES: u64 = 500_000;
/// Connections with held bytes.
const HELD: usize = 3;

pub fn trials() -> Vec<Trial> {
    vec![trial("hold::reboot::a_guest_that_is_reset_ends_its_connections", reset_guest)]
}

fn reset_guest() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = still();
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    after_reset(&topology, &attached).with_context(|| attached.describe())?;
    attached.detach()
}

fn after_reset(topology: &Topology, attached: &Attached<'_>) -> Result<()> {
    let mut idle = connect(topology)?;
    let mut pairs = (0..HELD).map(|_| connect(topology)).collect::<Result<Vec<_>>>()?;
    topology.guest().set_freeze(Freeze::Now);
    for pair in &mut pairs {
        let before = attached.hold("held_bytes")?;
        pair.client.send(BYTES)?;
        pair.client.until_acknowledged()?;
        let held = attached.hold("held_bytes")? - before;
        ensure!(held > BYTES / 2, "only {held} bytes are held");
    }
    idle.vm.forget()?;
    let mut clients = Vec::new();
    for pair in pairs {
        pair.vm.forget()?;
        clients.push(pair.client);
    }
    topology.guest().set_freeze(Freeze::Never);
    // They only read: nothing but a reset can tell them.
    for client in &mut clients {
        client.expect_reset().context("the sender of held bytes")?;
    }
    let counted = attached.resets("by_vm")?;
    ensure!(counted == HELD as u64, "{counted} of {HELD} resets are counted");
    attached.until_memory_is_free()?;
    idle.client.send(1)?;
    idle.client.expect_reset().context("the sender that had nothing outstanding")?;
    accelerated_again(topology, attached)
}

/// It has accepted: until it says something the host could not know.
fn connect(topology: &Topology) -> Result<Pair> {
    let mut pair = Pair::connect(topology, Family::V4)?;
    pair.vm.send(1)?;
    pair.client.receive(1)?;
    Ok(pair)
}

fn accelerated_again(topology: &Topology, attached: &Attached<'_>) -> Result<()> {
    let mut pair = connect(topology)?;
    let before = attached.counter("early_bytes")?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES)?;
    pair.client.until_acknowledged()?;
    let early = attached.counter("early_bytes")? - before;
    ensure!(early >= BYTES, "only {early} bytes of a new connection were acknowledged early");
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES)?;
    attached.until_memory_is_free()
}
