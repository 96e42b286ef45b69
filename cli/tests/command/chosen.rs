//! `vsnoop stats` and `vsnoop flows` while other commands attach and detach ports.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{PORT, TapHost, program, vsnoop, wait_until};
use crate::surroundings::put_on_record;

/// Connections of the port that is read first: meanwhile the other one is listed, and not read yet.
const FLOWS: u32 = 20_000;
/// How often the other one is attached and detached.
const ROUNDS: u32 = 8;
/// Prints no connection: none has this port number.
const FEW_FLOWS: [&str; 4] = ["flows", "--port", "1", "--json"];
const STATS: [&str; 2] = ["stats", "--json"];

pub fn trials() -> Vec<Trial> {
    trials![ports_that_are_detached_while_all_are_read_are_left_out]
}

fn ports_that_are_detached_while_all_are_read_are_left_out() -> Result<()> {
    let (mut stays, mut goes) = (TapHost::new("read1")?, TapHost::new("read2")?);
    // Ports are read in the order of their pins.
    if goes.pins()? < stays.pins()? {
        std::mem::swap(&mut stays, &mut goes);
    }
    stays.vsnoop(["attach", PORT, "--max-flows", "30000"])?.ok()?;
    put_on_record(&stays, FLOWS)?;
    let watches = [Watch::start(&STATS, "stats")?, Watch::start(&FEW_FLOWS, "flows")?];
    let (over, goes_in) = (AtomicBool::new(false), goes.netns.name());
    thread::scope(|scope| -> Result<()> {
        let readers = [
            scope.spawn(|| read_all(&STATS, &over)),
            scope.spawn(|| read_all(&FEW_FLOWS, &over)),
            scope.spawn(|| read_named(goes_in, &STATS, &over)),
            scope.spawn(|| read_named(goes_in, &FEW_FLOWS, &over)),
        ];
        let changed = attach_and_detach(&goes);
        over.store(true, Ordering::Relaxed);
        for reader in readers {
            match reader.join() {
                Ok(read) => read?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        changed
    })?;
    for watch in watches {
        watch.end()?;
    }
    stays.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn attach_and_detach(host: &TapHost) -> Result<()> {
    for _ in 0..ROUNDS {
        host.vsnoop(["attach", PORT])?.ok()?;
        host.vsnoop(["detach", PORT])?.ok()?;
    }
    Ok(())
}

/// All ports: there is always the one that stays.
fn read_all(command: &[&str], over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        let json = vsnoop(command)?.json()?;
        let count = json["ports"].as_array().map_or(0, Vec::len);
        ensure!([1, 2].contains(&count), "{command:?}: {json}");
    }
    Ok(())
}

/// The port that comes and goes, by its name: it is attached or not, and never damaged.
fn read_named(netns: &str, command: &[&str], over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        let (verb, options) = command.split_first().expect("a command has a verb");
        let named = [&["--netns", netns, verb, PORT], options].concat();
        let ran = vsnoop(&named)?;
        ensure!([0, 39].contains(&ran.code), "{named:?}: {ran:?}");
    }
    Ok(())
}

/// A command with `--watch`; ended when dropped.
struct Watch {
    child: Child,
    errors: String,
}

impl Watch {
    /// Returns when it has printed something.
    fn start(command: &[&str], name: &str) -> Result<Self> {
        let (output, errors) = (format!("/run/watch-{name}"), format!("/run/watch-{name}-errors"));
        let mut watch = Command::new(program());
        watch.args(command).args(["--watch", "0.05"]).stdin(Stdio::null());
        watch.stdout(File::create(&output)?).stderr(File::create(&errors)?);
        let mut this = Self { child: watch.spawn()?, errors };
        wait_until("it has printed something, or has ended", || {
            Ok(fs::metadata(&output)?.len() > 0 || this.child.try_wait()?.is_some())
        })?;
        Ok(this)
    }

    /// It has gone on until now.
    fn end(mut self) -> Result<()> {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}: {}", fs::read_to_string(&self.errors)?);
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
