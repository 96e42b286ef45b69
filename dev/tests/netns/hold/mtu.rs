//! The MTU of the tap is lowered while the host holds data: a packet socket takes no single segment
//! that is larger (EMSGSIZE), so that the engine has to send it as a super-packet of smaller ones.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::topology::{Family, PORT, Side};

use super::still;
use crate::attached;
use crate::pair::Pair;
use crate::{FAMILIES, trial};

const BYTES: u64 = 400_000;
const LOWER_BYTES: usize = 1280;
/// Fits the lower MTU with all headers: a bridge drops what does not.
const SMALL_BYTES: u64 = 500;

pub fn trials() -> Vec<Trial> {
    FAMILIES
        .map(|(name, families)| {
            trial(format!("hold::mtu::a_lower_one_of_the_tap_stops_nothing_{name}"), move || {
                families.iter().try_for_each(|family| lowered(*family))
            })
        })
        .into()
}

fn lowered(family: Family) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = still();
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, family)?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > BYTES / 2, "only {held} bytes are held\n{}", attached.describe());

    topology.host.set_mtu(PORT, LOWER_BYTES)?;
    // Much of what the guest loses is sent again in single segments.
    topology.set_guest_faults(Side::Vm, Faults { loss: 0.5, ..Faults::default() });
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    ensure!(attached.hold("resends")? > 0, "nothing was sent again\n{}", attached.describe());

    topology.set_guest_faults(Side::Vm, Faults::default());
    pair.client.send(SMALL_BYTES)?;
    pair.vm.receive(SMALL_BYTES).with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}
