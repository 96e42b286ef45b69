//! A VM whose device takes no super-packets: the host's stack splits those behind the hooks, into
//! more segments than a short ring may have room for.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::Family;

use super::still;
use crate::attached;
use crate::pair::Pair;
use crate::trial;

const BYTES: u64 = 400_000;
/// Less than the segments of a super-packet of 64 KB.
const RING_FRAMES: usize = 32;
const TRIES: usize = 20;

pub fn trials() -> Vec<Trial> {
    vec![trial("hold::no_tso::held_data_is_handed_over_in_segments", segments)]
}

fn segments() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    // Where something keeps the VM from a CPU for 200 ms in mid-transfer, a copy is sent again.
    for _ in 1..TRIES {
        if sent_again()? == 0 {
            return Ok(());
        }
    }
    let again = sent_again()?;
    ensure!(again == 0, "{again} frames were sent again, {TRIES} times some");
    Ok(())
}

/// Frames of an upload that were sent again. None needs to be: the ring takes or refuses each
/// segment, so that none is lost unseen.
fn sent_again() -> Result<u64> {
    let mut case = still();
    case.topology.to_vm = Offloads::CHECKSUM;
    case.topology.ring_frames = RING_FRAMES;
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut pair = Pair::connect(&topology, Family::V4)?;
    topology.guest().set_freeze(Freeze::Now);
    pair.client.send(BYTES).with_context(|| attached.describe())?;
    pair.client.until_acknowledged().with_context(|| attached.describe())?;
    let held = attached.hold("held_bytes")?;
    ensure!(held > BYTES / 2, "only {held} bytes are held\n{}", attached.describe());

    let resent = attached.hold("resends")?;
    topology.guest().set_freeze(Freeze::Never);
    pair.vm.receive(BYTES).with_context(|| attached.describe())?;
    let again = attached.hold("resends")? - resent;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()?;
    Ok(again)
}
