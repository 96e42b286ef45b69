//! `attach` is killed at many moments: the port is attached completely, or nothing is left that
//! affects the next command on it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{PINS, PORT, Snapshot, TapHost, list, program, vsnoop, wait_until};

/// Number of kills, spread over the time in which pins, hooks and qdisc are set up.
const STEPS: u32 = 12;
const ATTACH: &[&str] = &["attach", PORT];

pub fn trials() -> Vec<Trial> {
    trials![
        attach_that_is_killed_is_whole_or_leaves_nothing_that_status_does_not_remove,
        attach_that_is_killed_hinders_no_further_attach_and_no_other_port,
        attach_that_is_killed_is_cleaned_up_by_detach,
        attach_that_gets_a_signal_is_whole_or_leaves_nothing,
    ]
}

fn attach_that_is_killed_is_whole_or_leaves_nothing_that_status_does_not_remove() -> Result<()> {
    let host = TapHost::new("kill1")?;
    killed_everywhere(&host, ATTACH, Signal::SIGKILL, |before| {
        let status = vsnoop(["status", "--json"])?.json()?;
        ensure!(status["damaged"] == serde_json::json!([]), "{status}");
        if status["ports"] == serde_json::json!([]) {
            // Unless the helper has begun to remove it just before.
            return wait_until("nothing is left", || Ok(host.state()? == *before))
                .with_context(|| format!("left: {:?}", host.state()));
        }
        ensure!(status["ports"][0]["state"] == "active", "{status}");
        host.vsnoop(["detach", PORT])?.ok().map(drop)
    })
}

fn attach_that_is_killed_hinders_no_further_attach_and_no_other_port() -> Result<()> {
    let (host, other) = (TapHost::new("kill2")?, TapHost::new("kill2b")?);
    other.vsnoop(["attach", PORT])?.ok()?;
    let others = (other.state()?.qdiscs, other.programs()?);
    killed_everywhere(&host, ATTACH, Signal::SIGKILL, |_| {
        let again = host.vsnoop(["attach", PORT])?;
        let is_whole = again.code == 33;
        ensure!(is_whole || again.code == 0, "{again:?}");
        host.vsnoop(["detach", PORT])?.ok()?;
        let now = (other.state()?.qdiscs, other.programs()?);
        ensure!(now == others, "another port is {now:?} instead of {others:?}");
        Ok(())
    })?;
    other.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn attach_that_is_killed_is_cleaned_up_by_detach() -> Result<()> {
    let host = TapHost::new("kill3")?;
    killed_everywhere(&host, ATTACH, Signal::SIGKILL, |_| {
        // It is attached, or detach says that it is not.
        let ran = host.vsnoop(["detach", PORT])?;
        ensure!([0, 39].contains(&ran.code), "{ran:?}");
        Ok(())
    })
}

fn attach_that_gets_a_signal_is_whole_or_leaves_nothing() -> Result<()> {
    let host = TapHost::new("term")?;
    killed_everywhere(&host, ATTACH, Signal::SIGTERM, |before| {
        if host.pins()?.exists() {
            return host.vsnoop(["detach", PORT])?.ok().map(drop);
        }
        // Nothing was there to be cleaned up.
        let mut now = host.state()?;
        now.pins.retain(|path| path.starts_with(host.pins().unwrap_or_default()));
        ensure!(now == *before, "left: {now:?}");
        Ok(())
    })
}

/// Kills a command while it loads, and then at each of many moments after its first pin. `verify`
/// checks what is left, and removes it; then the earlier state must be restored.
pub fn killed_everywhere(
    host: &TapHost,
    arguments: &[&str],
    signal: Signal,
    mut verify: impl FnMut(&Snapshot) -> Result<()>,
) -> Result<()> {
    let before = Snapshot { pins: Vec::new(), ..host.state()? };
    let mut steps = vec![None];
    steps.extend((0..STEPS).map(|step| Some(Duration::from_micros(400) * step * step / 4)));
    for step in steps {
        let command = start(host, arguments)?;
        let pins = list(Path::new(PINS));
        match step {
            None => thread::sleep(Duration::from_millis(20)),
            Some(after) => {
                // A busy loop, because these moments are short.
                while list(Path::new(PINS)).len() <= pins.len() && is_alive(&command) {}
                let until = Instant::now() + after;
                while Instant::now() < until {}
            }
        }
        end(command, signal)?;
        verify(&before).with_context(|| format!("killed {step:?} after its first pin"))?;
        wait_until("all is as before", || {
            Ok(Snapshot { pins: Vec::new(), ..host.state()? } == before)
        })
        .with_context(|| format!("killed {step:?} after its first pin: {:?}", host.state()))?;
        ensure!(!host.pins()?.exists(), "its pins are left");
    }
    Ok(())
}

fn start(host: &TapHost, arguments: &[&str]) -> Result<Child> {
    let mut command = Command::new(program());
    command.args(["--netns", host.netns.name()]).args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start the command")
}

fn is_alive(child: &Child) -> bool {
    crate::sandbox::is_running(child.id() as i32)
}

fn end(mut child: Child, signal: Signal) -> Result<()> {
    // It may have ended by itself.
    let _ = kill(Pid::from_raw(child.id() as i32), signal);
    child.wait().context("wait for the command").map(drop)
}
