//! Background processes of another `/run`, as in a container with the host's BPF file system: they
//! see other lock files, and the same ports.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::background::Process::{Engine, Helper};
use crate::host;
use crate::scene;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial("other_run::one_engine_hands_over_and_another_takes_its_place", one_engine)]
}

/// A second engine, and the one that a second helper starts, would hand over the same bytes.
fn one_engine() -> Result<()> {
    let topology = scene::still().build()?;
    let attached = scene::still().attach(&topology)?;
    let pair = scene::held(&topology, &attached)?;
    let first = Engine.next(None)?;

    let refused = start("engine")?.0.take().context("the second engine")?.wait_with_output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success(), "a second engine worked: {said}");
    ensure!(said.contains("another engine looks after the ports of /sys/fs/bpf"), "{said}");
    let helper = start("helper")?;
    ensure!(Engine.pid()? == Some(first), "the first engine has ended");

    // Whichever engine comes next hands over what the first one held.
    Engine.kill()?;
    attached.wait_until("another engine works", || Ok(attached.hold_text("engine")? == "alive"))?;
    scene::ends_exact(&topology, attached, pair)?;

    // The engine has mounts of its own, in which pins stay that a later test unmounts: it would
    // look after the ports of that test, and leave them attached.
    drop(helper);
    Engine.kill_all()?;
    Helper.kill_all()
}

/// A process that ends when this is dropped.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a background process, in the foreground, with another `/run`.
fn start(role: &'static str) -> Result<Running> {
    let program = host::original()?;
    let starting = move || -> Result<Running> {
        // This changes the thread and its children, not the other threads.
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).context("own mounts")?;
        let none = None::<&OsStr>;
        mount(Some("tmpfs"), "/run/vsnoop", Some("tmpfs"), MsFlags::empty(), none)
            .context("another /run")?;
        let mut command = Command::new(program);
        command.args([role, "--foreground"]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::piped()).spawn();
        Ok(Running(Some(child.with_context(|| format!("start the {role}"))?)))
    };
    match thread::spawn(starting).join() {
        Ok(started) => started,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
