//! A ring that is made smaller, or a queue that is taken away: the kernel frees what was in it, and
//! no packet tells. The engine sends it again from the copy when the VM does not answer.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::stream::Stream;
use vsnoop_testbed::topology::{PORT, Topology, TopologyOptions};

use crate::attached::{self, Attached};
use crate::backlog::Backlog;
use crate::case::Case;
use crate::trial;

/// In the ring when it is harmed.
const FRAMES: usize = 16;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("shrinking::what_was_in_a_ring_that_shrank_is_sent_again", shrunk_ring),
        trial("shrinking::what_was_in_a_queue_that_was_disabled_is_sent_again", disabled_queue),
    ]
}

fn shrunk_ring() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..Case::default() };
    let topology = case.build()?;
    let mut attached = Attached::new(&topology)?;
    let mut bystander = Backlog::connect(&topology)?;
    bystander.send(FRAMES)?;
    bystander.receive(FRAMES)?;
    attached.until_nothing_is_outstanding()?;
    topology.host.set_txqueuelen(PORT, 2 * FRAMES)?;

    let mut victim = Backlog::connect(&topology)?;
    topology.guest().set_freeze(Freeze::Now);
    victim.send(FRAMES)?;
    topology.host.set_txqueuelen(PORT, 1)?;
    topology.host.set_txqueuelen(PORT, 2 * FRAMES)?;
    is_sent_again(&topology, &attached, &mut victim)?;

    bystander.send(FRAMES).and_then(|()| bystander.receive(FRAMES)).context("a bystander")?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// A guest that disables a queue loses the frames in it.
fn disabled_queue() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions { queues: 2, ..base.topology.clone() },
        freezes: &[Freeze::Never],
        ..base
    };
    let topology = case.build()?;
    let mut attached = Attached::new(&topology)?;
    let mut victim = Backlog::connect(&topology)?;
    topology.guest().set_freeze(Freeze::Now);
    victim.send(FRAMES)?;
    let guest = topology.guest();
    let lost = if guest.is_waiting(0)? { 0 } else { 1 };
    ensure!(guest.is_waiting(lost)?, "the data is in neither queue");
    guest.set_queue(lost, false)?;
    guest.set_queue(lost, true)?;
    is_sent_again(&topology, &attached, &mut victim)?;

    let outcome = Stream::run(&topology, &case.plan).with_context(|| attached.describe())?;
    ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    attached.ensure_no_reset()?;
    attached.detach()
}

/// The host has a copy of the frames in the ring.
fn is_sent_again(topology: &Topology, attached: &Attached<'_>, victim: &mut Backlog) -> Result<()> {
    topology.guest().set_freeze(Freeze::Never);
    victim.receive(FRAMES).with_context(|| attached.describe())?;
    ensure!(attached.hold("resends")? > 0, "nothing was lost\n{}", attached.describe());
    Ok(())
}
