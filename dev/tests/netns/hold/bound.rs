//! The bound of a hold: many slow readers share it, none gets all of it, and what was acknowledged
//! is never dropped for want of it.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::stream::{SocketOptions, Stream, StreamPlan};
use vsnoop_testbed::topology::{Family, Side, TopologyOptions};

use crate::attached;
use crate::case::Case;
use crate::pair::Pair;
use crate::trial;

const SLOW_READERS: u64 = 50;
const SLOW_BYTES: u64 = 300_000;
/// Bytes that a slow reader reads before the quick one is done.
const AT_FIRST_BYTES: u64 = 20_000;
const QUICK_BYTES: u64 = 3_000_000;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (size, offloads) in
        [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)]
    {
        trials.extend([
            trial(format!("hold::bound::fifty_slow_readers_share_1_mb_{size}"), move || {
                shared(offloads)
            }),
            trial(
                format!("hold::bound::one_slow_reader_leaves_room_for_another_{size}"),
                move || two(offloads),
            ),
        ]);
    }
    trials
}

/// The VM stands still, and one connection has got all that it can get: the next one is still taken
/// data of.
fn two(offloads: Offloads) -> Result<()> {
    const GREEDY_BYTES: u64 = 3_000_000;
    const MODEST_BYTES: u64 = 100_000;
    if !attached::is_wanted() {
        return Ok(());
    }
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        hold: Some("1M"),
        freezes: &[Freeze::Never],
        ..base
    };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut greedy = Pair::connect(&topology, Family::V4)?;
    let mut modest = Pair::connect(&topology, Family::V4)?;
    topology.guest().set_freeze(Freeze::Now);
    let mut sender = greedy.client.twin()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || sender.send(GREEDY_BYTES));
        let probes = || topology.client.counter("TcpExt", "TCPWinProbe");
        attached
            .wait_until("the greedy sender has probed a closed window", || Ok(probes()? >= 1))?;
        modest.client.send(MODEST_BYTES).with_context(|| attached.describe())?;
        modest.client.until_acknowledged().with_context(|| attached.describe())?;
        ensure!(!sending.is_finished(), "the hold took everything: nothing was tested");
        topology.guest().set_freeze(Freeze::Never);
        modest.vm.receive(MODEST_BYTES).with_context(|| attached.describe())?;
        greedy.vm.receive(GREEDY_BYTES).with_context(|| attached.describe())?;
        match sending.join() {
            Ok(sent) => sent,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// Slow readers want fifteen times as much memory as there is. A quick one that comes later is done
/// while all of them are still far from it.
fn shared(offloads: Offloads) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
        hold: Some("1M"),
        ..base
    };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let size = attached.hold("size_bytes")?;
    ensure!(size == 1 << 20, "a hold of {size} bytes");
    let slow = StreamPlan {
        to_vm_bytes: SLOW_BYTES,
        from_vm_bytes: 1000,
        vm_stops_after_bytes: Some(AT_FIRST_BYTES),
        socket: SocketOptions { vm_receive_buffer_bytes: Some(8192), ..SocketOptions::default() },
        ..case.plan.clone()
    };
    let readers = (0..SLOW_READERS)
        .map(|seed| Stream::start(&topology, &StreamPlan { seed, ..slow.clone() }))
        .collect::<Result<Vec<_>>>()?;
    let mut most = 0;
    let mut look = || -> Result<u64> {
        let used = attached.hold("used_bytes")?;
        ensure!(used <= size, "{used} bytes are used of {size}");
        most = most.max(used);
        Ok(used)
    };
    attached
        .wait_until("the slow readers have most of the memory", || Ok(look()? > size / 4 * 3))?;

    let quick = Stream::start(
        &topology,
        &StreamPlan {
            seed: SLOW_READERS,
            to_vm_bytes: QUICK_BYTES,
            from_vm_bytes: 1000,
            ..StreamPlan::default()
        },
    )?;
    attached.wait_until("the quick reader has everything", || {
        look()?;
        Ok(quick.verified_bytes(Side::Vm) == QUICK_BYTES)
    })?;
    for (number, reader) in readers.iter().enumerate() {
        let read = reader.verified_bytes(Side::Vm);
        ensure!(
            read < SLOW_BYTES / 2,
            "slow reader {number} had {read} of {SLOW_BYTES} bytes before the quick one was done"
        );
    }
    let quick = quick.finish().with_context(|| attached.describe())?;
    ensure!(quick.is_complete(), "{quick:?}\n{}", attached.describe());
    readers.iter().for_each(Stream::go_on);
    for (number, reader) in readers.into_iter().enumerate() {
        let outcome = reader.finish().with_context(|| attached.describe())?;
        look()?;
        ensure!(
            outcome.is_complete(),
            "slow reader {number}: {outcome:?}\n{}",
            attached.describe()
        );
    }
    ensure!(most > size / 4 * 3, "no more than {most} bytes were ever used of {size}");
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}
