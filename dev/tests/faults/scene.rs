//! A port with a hold, and a connection with bytes that the host acknowledged and the VM does not
//! have.

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{Family, Topology};

use crate::attached::Attached;
use crate::case::Case;
use crate::pair::Pair;

pub const BYTES: u64 = 1_000_000;

/// A VM that runs until it is frozen.
pub fn still() -> Case {
    Case { hold: Some("16M"), freezes: &[Freeze::Never], ..Case::default() }
}

/// Freezes the VM and sends [`BYTES`], of which the host then holds most.
pub fn held(topology: &Topology, attached: &Attached<'_>) -> Result<Pair> {
    held_over(topology, attached, Family::V4)
}

pub fn held_over(topology: &Topology, attached: &Attached<'_>, family: Family) -> Result<Pair> {
    let mut pair = Pair::connect(topology, family)?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > BYTES / 2, "only {held} bytes are held\n{}", attached.describe());
    Ok(pair)
}

/// The VM runs and gets everything; no connection was reset.
pub fn ends_exact(topology: &Topology, mut attached: Attached<'_>, mut pair: Pair) -> Result<()> {
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    pair.client.send(BYTES)?;
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}
