//! Programs that leave nothing behind: namespaces of their own for processes and mounts, and
//! perhaps a directory as their root.
//!
//! Their children and mounts end with them, also when the program that started them is killed.
//! They are in a session of their own, so that Ctrl-C on the terminal is for their owner alone, who
//! ends them.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::interrupt;
use crate::net::Netns;

/// The exit status of a program that is not there.
pub const NOT_FOUND: i32 = 127;

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// An error message repeats this many lines of an output.
const LAST_LINES: usize = 4;

/// Mounts /proc and the like below a root, and runs a program there: `sh -c ENTER sh ROOT
/// PROGRAM...`.
const ENTER: &str = "root=$1; shift
    mount -t proc proc \"$root/proc\" &&
    mount -t tmpfs tmpfs \"$root/dev/shm\" &&
    mount -t tmpfs tmpfs \"$root/tmp\" && chmod 1777 \"$root/tmp\" &&
    export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin &&
    exec chroot \"$root\" \"$@\"";

/// The network of a program.
#[derive(Clone, Copy, Debug)]
pub enum Network<'a> {
    Host,
    /// Not even a loopback that is up.
    None,
    Of(&'a Netns),
}

/// Where a program runs.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox<'a> {
    pub network: Network<'a>,
    /// Its root directory, with an own `/tmp`; the host's if there is none.
    pub root: Option<&'a Path>,
}

/// A program and all that it has started; it ends when this is dropped.
#[derive(Debug)]
pub struct Contained(Child);

/// Starts a shell script. Its output goes to `log`, or nowhere.
pub fn start(sandbox: &Sandbox, script: &str, log: Option<&Path>) -> Result<Contained> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-euc", script]);
    start_program(sandbox, &shell, log)
}

/// Starts a program with its arguments; its output goes to `log`, or nowhere.
pub fn start_program(
    sandbox: &Sandbox,
    program: &Command,
    log: Option<&Path>,
) -> Result<Contained> {
    let mut command = match sandbox.network {
        Network::Of(netns) => netns.command("unshare"),
        Network::Host | Network::None => Command::new("unshare"),
    };
    command.args(["--mount", "--propagation", "private"]);
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    if let Network::None = sandbox.network {
        command.arg("--net");
    }
    command.arg("--");
    if let Some(root) = sandbox.root {
        command.args(["/bin/sh", "-c", ENTER, "sh"]).arg(root);
    }
    command.arg(program.get_program()).args(program.get_args());
    command.stdin(Stdio::null());
    match log {
        None => command.stdout(Stdio::null()).stderr(Stdio::null()),
        Some(log) => {
            let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
            let second = file.try_clone().context("a second handle of the log")?;
            command.stdout(file).stderr(second)
        }
    };
    // SAFETY: prctl and setsid are plain system calls, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            nix::unistd::setsid()?;
            Ok(())
        });
    }
    let child = command.spawn().context("start unshare: is the package util-linux installed?")?;
    Ok(Contained(child))
}

/// The end of a program's output, for an error message.
pub fn last_lines(output: &str) -> String {
    let lines: Vec<_> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    if last.is_empty() { "it printed nothing".into() } else { last.join(" | ") }
}

impl Contained {
    /// Waits until it ends, at most for `limit`. An error ends it.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            interrupt::check()?;
            if Instant::now() > deadline {
                self.end();
                bail!("it did not end within {} s", limit.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().context("look after a program")
    }

    fn end(&mut self) {
        // It may have ended already, and waiting for a child that was waited for is an error too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        self.end();
    }
}
