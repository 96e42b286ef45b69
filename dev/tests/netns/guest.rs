//! Faults behind the hooks: a VM that does not run, a ring that is full, a guest that loses what
//! the host has acknowledged.  The host holds a copy of that: every stream is complete.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::{Direction, Faults, Freeze};
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::{Family, PORT, Side, TopologyOptions};

use crate::attached::{self, Attached};
use crate::backlog::Backlog;
use crate::case::Case;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("guest::long_freeze_loses_nothing", long_freeze),
        trial("guest::full_ring_loses_nothing", || full_ring(Offloads::SUPER_PACKETS)),
        trial("guest::full_ring_loses_nothing_mtu_sized", || full_ring(Offloads::NONE)),
        trial("guest::prompt_vm_is_left_alone_in_the_end", prompt),
    ];
    let reordering = Faults { reorder: 0.02, reorder_by: Duration::from_millis(5), ..none() };
    let duplication = Faults { duplicate: 0.05, ..none() };
    let loss = Faults { loss: 0.01, data_only: true, ..none() };
    let corruption = Faults { corrupt: 0.01, data_only: true, ..none() };
    // Both ways, or one way.
    let faults = [
        ("loss", loss.clone(), loss),
        ("reordering", reordering.clone(), reordering),
        ("duplication", duplication.clone(), duplication),
        ("corruption", corruption, none()),
        ("corruption_of_answers", none(), Faults { corrupt: 0.02, ..none() }),
    ];
    for (name, to_vm, from_vm) in faults {
        for (size, offloads) in
            [("super_packets", Offloads::SUPER_PACKETS), ("mtu_sized", Offloads::NONE)]
        {
            let (to_vm, from_vm) = (to_vm.clone(), from_vm.clone());
            trials.push(trial(format!("guest::{name}_is_mended_{size}"), move || {
                lossy(to_vm, from_vm, offloads)
            }));
        }
    }
    trials
}

fn none() -> Faults {
    Faults::default()
}

/// Streams beside the long ones of a test of faults, and bytes of each to the VM.
const SHORT_STREAMS: u64 = 8;
const SHORT_BYTES: u64 = 10_000;

/// Runs a case whose guest loses or damages frames to it, and its own answers, as these faults say.
fn lossy(mut to_vm: Faults, mut from_vm: Faults, offloads: Offloads) -> anyhow::Result<()> {
    if offloads.tso {
        // Fewer frames carry the same bytes.
        for faults in [&mut to_vm, &mut from_vm] {
            faults.loss *= 5.0;
            faults.corrupt *= 5.0;
        }
    }
    let base = Case::default();
    let case = Case {
        topology: TopologyOptions {
            from_client: offloads,
            from_vm: offloads,
            ..base.topology.clone()
        },
        plan: StreamPlan { to_vm_bytes: 1_000_000, ..base.plan.clone() },
        families: &[Family::V4, Family::V6],
        openers: &[Side::Client, Side::Vm, Side::Client, Side::Vm],
        to_vm,
        from_vm,
        ..base
    };
    case.run_and(|topology, _, _| {
        let mut happened = 0;
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            let counted = topology.guest().counters(direction);
            happened += counted.lost + counted.reordered + counted.duplicated + counted.corrupted;
        }
        ensure!(happened > 0, "the fault never happened");
        for seed in 0..SHORT_STREAMS {
            let plan = StreamPlan { seed, to_vm_bytes: SHORT_BYTES, ..case.plan.clone() };
            let outcome = Stream::run(topology, &plan)?;
            ensure!(outcome.is_complete(), "a short stream was reset: {outcome:?}");
        }
        Ok(())
    })
}

fn long_freeze() -> anyhow::Result<()> {
    let base = Case::default();
    let case = Case {
        plan: StreamPlan {
            to_vm_bytes: 3_000_000,
            pause_every_bytes: Some(100_000),
            ..base.plan.clone()
        },
        freezes: &[Freeze::Never],
        ..base
    };
    for opener in [Side::Client, Side::Vm] {
        let topology = case.build()?;
        let mut attached = Attached::new(&topology)?;
        let plan = StreamPlan { opener, ..case.plan.clone() };
        let stream = Stream::start(&topology, &plan)?;
        stream.wait_paused()?;
        let timeouts = || topology.vm.counter("TcpExt", "TCPTimeouts");
        let before = timeouts()?;
        topology.guest().set_freeze(Freeze::Now);
        stream.go_on();
        attached.wait_until("the VM's TCP has timed out", || Ok(timeouts()? >= before + 3))?;
        let while_frozen = attached::is_wanted().then(|| attached.counter("early_acks"));
        topology.guest().set_freeze(Freeze::Never);
        let outcome = stream.finish().with_context(|| attached.describe())?;
        ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
        if let Some(early_acks) = while_frozen {
            ensure!(early_acks? > 0, "nothing acknowledged early\n{}", attached.describe());
        }
        attached.detach()?;
    }
    Ok(())
}

/// Segments that the ring refuses wait in the hold.
fn full_ring(offloads: Offloads) -> anyhow::Result<()> {
    let base = Case::default();
    Case {
        topology: TopologyOptions {
            from_client: offloads,
            ring_frames: if offloads.tso { 2 } else { 8 },
            ..base.topology.clone()
        },
        plan: StreamPlan { to_vm_bytes: 1_000_000, ..base.plan.clone() },
        ..base
    }
    .run_and(|topology, _, _| {
        let dropped = topology.host.device_counters(PORT)?.dropped_on_the_way_out()?;
        ensure!(dropped > 0, "the ring was never full");
        Ok(())
    })
}

/// A VM that always answers at once gets early acknowledgements in the beginning of a flow only.
/// The time until the hooks regard it as prompt depends on the load of the machine: small
/// requests are sent until a burst that follows them is left to the VM.
fn prompt() -> anyhow::Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    const REQUESTS: usize = 100;
    const BURST_BYTES: usize = 1_000_000;
    const PATIENCE: Duration = Duration::from_secs(120);
    let case = Case { freezes: &[Freeze::Never], ..Case::default() };
    let topology = case.build()?;
    let mut attached = Attached::new(&topology)?;
    let mut connection = Backlog::connect(&topology)?;
    connection.send(1)?;
    connection.receive(1)?;
    let early_acks = attached.counter("early_acks")?;
    ensure!(early_acks > 0, "the first request was not acknowledged early");
    let since = Instant::now();
    while attached.counter("passive")? == 0 {
        ensure!(since.elapsed() < PATIENCE, "never left alone\n{}", attached.describe());
        connection.send(REQUESTS)?;
        connection.receive(REQUESTS)?;
        connection.burst(BURST_BYTES)?;
    }
    let outcome = Stream::run(&topology, &case.plan).with_context(|| attached.describe())?;
    ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    attached.detach()
}
