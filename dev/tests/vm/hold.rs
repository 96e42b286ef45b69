//! Data that the host has acknowledged reach a machine that loses segments, is stopped, or whose
//! engine dies; the sender to a machine that is gone is reset.
//!
//! Without vsnoop the same transfers test the guests and the tests themselves.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use serde_json::Value;
use vsnoop_guest::control::Command;
use vsnoop_guest::transfer::Direction::{Download, Upload};
use vsnoop_testbed::client::{self, Outcome};

use crate::background::Process::Engine;
use crate::{
    Bench, Frozen, KB, LIMIT, LONELY, Load, MB, NEIGHBOUR, Request, VICTIM, find_count, joined,
    wait_until, with_enough_bytes,
};

const SIZE: &str = "16M";
/// Longer than an engine may be silent before it is replaced.
const PAUSE: Duration = Duration::from_secs(8);
/// Engines that die in one transfer, with data that only the host had.
const KILLS: usize = 5;

/// A machine's port has a hold until this is dropped.
struct HoldGuard<'a> {
    bench: &'a Bench,
    machine: usize,
}

impl<'a> HoldGuard<'a> {
    fn begin(bench: &'a Bench, machine: usize) -> Result<Self> {
        let this = Self { bench, machine };
        if bench.attached {
            bench.stage.detach(machine)?;
            bench.stage.attach_with(machine, &["--hold", SIZE])?;
        }
        Ok(this)
    }

    /// Bytes acknowledged to their senders that only this host has.
    fn held_bytes(&self) -> Result<u64> {
        Ok(if self.bench.attached { self.hold()?["held_bytes"].as_u64().unwrap_or(0) } else { 0 })
    }

    fn hold(&self) -> Result<Value> {
        let stats = self.bench.stage.vsnoop()?.stats(self.bench.stage.tap(self.machine))?;
        let hold = &stats["ports"][0]["hold"];
        ensure!(hold.is_object(), "the port has no hold: {stats}");
        Ok(hold.clone())
    }

    /// Data was held, no connection was reset, and the memory is free again.
    fn verify(&self) -> Result<()> {
        if !self.bench.attached {
            return Ok(());
        }
        let story = || self.bench.story(self.machine);
        wait_until("the hold's memory is free", || Ok(self.hold()?["used_bytes"] == 0))
            .with_context(story)?;
        let stats = self.bench.stage.vsnoop()?.stats(self.bench.stage.tap(self.machine))?;
        let held = find_count(&stats, "held_segments").context("no held_segments")?;
        ensure!(held > 0, "nothing was held\n{}", story());
        let resets = &stats["ports"][0]["resets"];
        let resets = resets.as_object().with_context(|| format!("no resets: {stats}"))?;
        ensure!(resets.values().all(|count| *count == 0), "resets: {resets:?}\n{}", story());
        Ok(())
    }
}

impl Drop for HoldGuard<'_> {
    fn drop(&mut self) {
        let again = || {
            self.bench.stage.detach(self.machine)?;
            self.bench.stage.attach(self.machine)
        };
        if self.bench.attached
            && let Err(error) = again()
        {
            eprintln!("{error:#}");
        }
    }
}

pub fn firewall_of_1_percent(bench: &Bench) -> Result<()> {
    firewall(bench, 1, &[10 * KB, 100 * KB, MB, 4 * MB, 8 * MB])
}

pub fn firewall_of_20_percent(bench: &Bench) -> Result<()> {
    firewall(bench, 20, &[10 * KB, 100 * KB, MB])
}

/// Segments that the guest loses are retransmitted; no connection is reset.
fn firewall(bench: &Bench, drop_percent: u32, sizes: &[u64]) -> Result<()> {
    let held = HoldGuard::begin(bench, VICTIM)?;
    let victim = bench.stage.vm(VICTIM);
    victim.command(&Command::Firewall { drop_percent })?;
    let result = {
        let _load = Load::start(bench)?;
        thread::scope(|scope| {
            let uploads = || -> Result<()> {
                sizes.iter().try_for_each(|size| bench.exact(VICTIM, Upload, *size))
            };
            let download = scope.spawn(|| bench.exact(VICTIM, Download, MB));
            let jobs: Vec<_> = (0..4).map(|_| scope.spawn(uploads)).collect();
            jobs.into_iter().try_for_each(joined)?;
            joined(download)
        })
        .with_context(|| bench.story(VICTIM))
    };
    let drops = victim.stats()?.firewall_drops;
    victim.command(&Command::Firewall { drop_percent: 0 })?;
    result?;
    ensure!(drops > 0, "the firewall has dropped nothing: nothing was tested");
    held.verify()?;
    bench.until_no_connection(VICTIM)
}

pub fn engine_killed(bench: &Bench) -> Result<()> {
    let held = HoldGuard::begin(bench, VICTIM)?;
    let load = Load::start(bench)?;
    with_enough_bytes("the transfer was over before the engine was killed often", |times| {
        thread::scope(|scope| {
            let up = scope.spawn(move || bench.exact(VICTIM, Upload, 20 * MB * times));
            let mut kills = 0;
            while bench.attached && kills < KILLS && !up.is_finished() {
                if held.held_bytes()? > 0 {
                    let before = Engine.kill()?;
                    Engine.next(Some(before))?;
                    kills += 1;
                }
            }
            joined(up).with_context(|| bench.story(VICTIM))?;
            Ok(kills == KILLS || !bench.attached)
        })
    })?;
    drop(load);
    held.verify()?;
    bench.until_no_connection(VICTIM)
}

/// A machine that does not run for a while, as in a snapshot, while the host holds much for it.
pub fn paused(bench: &Bench) -> Result<()> {
    let held = HoldGuard::begin(bench, VICTIM)?;
    let since = bench.stage.tap_counts(VICTIM)?.to_vm_bytes;
    // More than the hold takes.
    let up_bytes = 40 * MB;
    thread::scope(|scope| {
        let up = scope.spawn(move || bench.exact(VICTIM, Upload, up_bytes));
        bench.until_moved(since, 100 * KB)?;
        let frozen = Frozen::begin(bench)?;
        if bench.attached {
            wait_until("the host holds data", || Ok(held.held_bytes()? > MB))
                .with_context(|| bench.story(VICTIM))?;
        }
        thread::sleep(PAUSE);
        ensure!(!up.is_finished(), "a frozen machine has received everything");
        drop(frozen);
        joined(up).with_context(|| bench.story(VICTIM))
    })?;
    held.verify()?;
    bench.until_no_connection(VICTIM)
}

/// The last test: it kills the machine.
pub fn killed(bench: &Bench) -> Result<()> {
    let held = HoldGuard::begin(bench, NEIGHBOUR)?;
    let machine = bench.stage.vm(NEIGHBOUR);
    thread::scope(|scope| {
        let request = Request {
            timeout: if bench.attached { LIMIT } else { LONELY },
            ..bench.request(NEIGHBOUR, Upload, 100_000 * MB)
        };
        let up = scope.spawn(move || client::transfer(bench.stage.client(), &request));
        let since = bench.stage.tap_counts(NEIGHBOUR)?.to_vm_bytes;
        wait_until("the transfer moves", || {
            Ok(bench.stage.tap_counts(NEIGHBOUR)?.to_vm_bytes >= since + 100 * KB)
        })?;
        machine.freeze()?;
        if bench.attached {
            wait_until("the host holds data", || Ok(held.held_bytes()? > MB))
                .with_context(|| bench.story(NEIGHBOUR))?;
        }
        kill(machine.pid(), Signal::SIGKILL).context("kill the machine")?;
        waitpid(machine.pid(), None).context("reap the machine")?;
        match joined(up)? {
            Outcome::Broken(_) => Ok(()),
            Outcome::Hung if !bench.attached => Ok(()),
            other => anyhow::bail!(
                "a transfer to a machine that is gone: {other:?}\n{}",
                bench.story(NEIGHBOUR)
            ),
        }
    })
}
