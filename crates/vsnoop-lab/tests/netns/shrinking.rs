//! A ring that is made smaller, or a queue that is taken away: the kernel frees what was in it, and
//! no packet tells. The helper sees it, and resets the connections whose data may have been there.
//!
//! It knows what was there from its look before, and a test cannot know when it looks. So a test lets
//! some looks pass, and where they were too few it begins again: the data stays lost.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_lab::testbed::relay::Freeze;
use vsnoop_lab::testbed::stream::Stream;
use vsnoop_lab::testbed::topology::{Family, PORT, Side, Topology, TopologyOptions, address};

use crate::attached::{self, Attached};
use crate::backlog::Backlog;
use crate::case::Case;
use crate::trial;

/// Two looks of the helper, where nothing delays it.
const LOOKS: Duration = Duration::from_millis(600);
/// Anything that lasts longer does not happen at all.
const PATIENCE: Duration = Duration::from_secs(120);
/// In the ring when it is harmed.
const FRAMES: usize = 16;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("shrinking::a_ring_shrunk_while_full_resets_whose_data_was_in_it", shrunk_ring),
        trial("shrinking::a_queue_disabled_with_data_in_it_resets_connections", disabled_queue),
    ]
}

/// An empty ring that shrinks harms nobody; a full one harms those whose data was in it.
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
    std::thread::sleep(LOOKS);
    topology.host.set_txqueuelen(PORT, 2 * FRAMES)?;
    std::thread::sleep(LOOKS);

    let mut victim = Backlog::connect(&topology)?;
    topology.guest().set_freeze(Freeze::Now);
    victim.send(FRAMES)?;
    // One frame stays, so that nothing but the shrinking tells the helper: a VM that has not emptied
    // its ring is waited for.
    let shrink =
        |shrunk: bool| topology.host.set_txqueuelen(PORT, if shrunk { 1 } else { 2 * FRAMES });
    if attached.has_hold() {
        shrink(true)?;
        std::thread::sleep(LOOKS);
        shrink(false)?;
        is_sent_again(&topology, &attached, &mut victim)?;
    } else {
        until_reset(&mut victim, shrink).with_context(|| attached.describe())?;
        shrink(false)?;
        topology.guest().set_freeze(Freeze::Never);
        victim.expect_reset_of_vm().with_context(|| attached.describe())?;
    }

    bystander.send(FRAMES).and_then(|()| bystander.receive(FRAMES)).context("a bystander")?;
    let resets = attached.counter("helper_resets")?;
    let wanted = u64::from(!attached.has_hold());
    ensure!(resets == wanted, "{resets} connections reset, not {wanted}\n{}", attached.describe());
    attached.detach()
}

/// A guest that gives up a queue loses what the host had put there.
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
    // As above: the other queue must not be empty.
    fill(&topology, 1 - lost)?;
    if attached.has_hold() {
        guest.set_queue(lost, false)?;
        std::thread::sleep(LOOKS);
        guest.set_queue(lost, true)?;
        is_sent_again(&topology, &attached, &mut victim)?;
    } else {
        until_reset(&mut victim, |disabled| guest.set_queue(lost, !disabled))
            .with_context(|| attached.describe())?;
        guest.set_queue(lost, true)?;
        guest.set_freeze(Freeze::Never);
        victim.expect_reset_of_vm().with_context(|| attached.describe())?;
    }

    let outcome = Stream::run(&topology, &case.plan).with_context(|| attached.describe())?;
    ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    attached.detach()
}

/// The host has a copy of what was in the ring.
fn is_sent_again(topology: &Topology, attached: &Attached<'_>, victim: &mut Backlog) -> Result<()> {
    topology.guest().set_freeze(Freeze::Never);
    victim.receive(FRAMES).with_context(|| attached.describe())?;
    ensure!(attached.hold("resends")? > 0, "nothing was lost\n{}", attached.describe());
    Ok(())
}

/// Harms the ring, again and again, until the sender is told.
fn until_reset(victim: &mut Backlog, harm: impl Fn(bool) -> Result<()>) -> Result<()> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        std::thread::sleep(LOOKS);
        harm(true)?;
        if victim.is_reset_within(2 * LOOKS)? {
            return Ok(());
        }
        harm(false)?;
    }
    anyhow::bail!("data was lost with its ring, and the sender was not reset: it hangs")
}

/// Sends datagrams of many ports to the VM, until one of them has come into this queue.
fn fill(topology: &Topology, queue: usize) -> Result<()> {
    let (from, to) = (address(Side::Client, Family::V4), address(Side::Vm, Family::V4));
    for port in 10_000..11_000 {
        if topology.guest().is_waiting(queue)? {
            return Ok(());
        }
        let socket = topology.client.run(|| Ok(UdpSocket::bind(SocketAddr::new(from, 0))?))?;
        socket.send_to(&[0], SocketAddr::new(to, port)).context("sending a datagram")?;
    }
    anyhow::bail!("no datagram came into queue {queue}")
}
