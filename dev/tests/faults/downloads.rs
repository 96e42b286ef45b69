//! Background processes are killed while connections are split.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use vsnoop_testbed::relay::{Faults, Freeze};
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::{Family, Side, Topology};

use crate::attached::Attached;
use crate::background::Process::{self, Engine, Helper, Keeper, Splitter};
use crate::case::Case;
use crate::killed::join_streams;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("downloads::splitter_killed_50_times", || {
            again_and_again(Family::V4, Splitter, Signal::SIGKILL, 50)
        }),
        trial("downloads::splitter_ended_10_times_as_by_an_upgrade", || {
            again_and_again(Family::V4, Splitter, Signal::SIGTERM, 10)
        }),
        trial("downloads::keeper_killed_10_times", || {
            again_and_again(Family::V4, Keeper, Signal::SIGKILL, 10)
        }),
        trial("downloads::engine_killed_10_times", || {
            again_and_again(Family::V4, Engine, Signal::SIGKILL, 10)
        }),
        trial("downloads::helper_killed_10_times", || {
            again_and_again(Family::V4, Helper, Signal::SIGKILL, 10)
        }),
    ]
}

/// Streams that run at a time.
const STREAMS: u64 = 4;
/// A VM that runs for 10 ms of every 60.
const LATE: Freeze =
    Freeze::Periodic { frozen: Duration::from_millis(50), period: Duration::from_millis(60) };

/// Downloads while a process is killed: each byte arrives, and no connection is reset.
fn again_and_again(family: Family, who: Process, signal: Signal, kills: u64) -> Result<()> {
    let delay = Faults { delay: Duration::from_millis(5), ..Faults::default() };
    let case = Case {
        options: &["--downloads", "on"],
        hold: Some("64M"),
        freezes: &[LATE],
        network: delay,
        ..Case::default()
    };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let running: Vec<_> = (0..STREAMS)
            .map(|number| {
                let (topology, attached, over) = (&topology, &attached, &over);
                scope.spawn(move || streams(topology, attached, family, number, over))
            })
            .collect();
        let killed =
            kill_again_and_again(who, signal, kills, || running.iter().any(|it| it.is_finished()));
        over.store(true, Ordering::Relaxed);
        join_streams(running)?;
        killed
    })?;
    topology.guest().set_freeze(Freeze::Never);
    attached.wait_until("nothing is kept any more", || Ok(kept()? == 0))?;
    attached.ensure_no_reset()?;
    attached.detach()
}

/// One after the other, most bytes from the VM.
fn streams(
    topology: &Topology,
    attached: &Attached<'_>,
    family: Family,
    number: u64,
    over: &AtomicBool,
) -> Result<u64> {
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        let plan = StreamPlan {
            family,
            opener: if number.is_multiple_of(2) { Side::Client } else { Side::Vm },
            to_vm_bytes: 50_000,
            from_vm_bytes: 2_000_000,
            seed: count * STREAMS + number,
            ..StreamPlan::default()
        };
        let outcome = Stream::run(topology, &plan).with_context(|| attached.describe())?;
        ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
        count += 1;
    }
    Ok(count)
}

/// At any instant, also while it begins. A fifth of the times at least connections are split.
fn kill_again_and_again(
    who: Process,
    signal: Signal,
    kills: u64,
    over: impl Fn() -> bool,
) -> Result<()> {
    let (mut killed, mut with_connections) = (0, 0);
    while killed < kills || with_connections < kills / 5 {
        ensure!(!over(), "a stream ended after {killed} kills");
        ensure!(killed < 20 * kills, "no connection was split when it was killed");
        let pid = who.next(None)?;
        thread::sleep(Duration::from_micros(fastrand::u64(..300_000)));
        with_connections += u64::from(kept()? > 0);
        ensure!(who.signal(signal)? == pid, "{who:?} {pid} ended by itself");
        who.next(Some(pid))?;
        killed += 1;
    }
    Ok(())
}

/// Connections that the keeper has: with four ends of pipes each.
fn kept() -> Result<usize> {
    const PIPES: usize = 4;
    let Some(pid) = Keeper.pid()? else { return Ok(0) };
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Ok(0) };
    let is_pipe = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        target.to_string_lossy().starts_with("pipe:")
    };
    Ok(descriptors.flatten().filter(is_pipe).count() / PIPES)
}
