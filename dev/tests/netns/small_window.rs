//! A VM with a small receive buffer, which a few segments fill: vsnoop must not make it slower.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{Family, Topology};

use crate::attached;
use crate::case::Case;
use crate::pair::Pair;
use crate::trial;

/// The receive buffer of stacks of small devices; Linux doubles it, and shows half.
const BUFFER_BYTES: usize = 8 * 1024;
const BYTES: u64 = 3_000_000;
/// A wait of 40 ms for each window would take twenty times as long.
const TIMES: u32 = 3;
const SLACK: Duration = Duration::from_secs(2);
/// On a busy machine one run may be slow; one that vsnoop makes slow is so every time.
const TRIES: usize = 3;

pub fn trials() -> Vec<Trial> {
    vec![trial("small_window::of_a_vm_that_runs_is_filled_at_once", filled_at_once)]
}

fn filled_at_once() -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case { freezes: &[Freeze::Never], ..Case::default() };
    let topology = case.build()?;
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let without = transfer(&topology)?;
        // A passive host would leave the VM, which is never late, alone.
        let mut attached = attached::Attached::with(&topology, None, &["--no-passive"])?;
        let with = transfer(&topology).with_context(|| attached.describe())?;
        attached.ensure_held()?;
        attached.until_memory_is_free()?;
        attached.ensure_no_reset()?;
        attached.detach()?;
        if with <= TIMES * without + SLACK {
            return Ok(());
        }
        times.push((without, with));
    }
    bail!("much slower with vsnoop, {TRIES} times (without, with): {times:?}")
}

fn transfer(topology: &Topology) -> Result<Duration> {
    let mut pair = Pair::connect_with(topology, Family::V4, Some(BUFFER_BYTES))?;
    let mut client = pair.client.twin()?;
    let since = Instant::now();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || client.send(BYTES));
        pair.vm.receive(BYTES)?;
        match sending.join() {
            Ok(sent) => sent,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    Ok(since.elapsed())
}
