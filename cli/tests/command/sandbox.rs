//! A sandbox that changes nothing of the machine, and helpers of the tests.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_bpf::{EmptyProgram, Hook};
use vsnoop_testbed::net::{Net, Netns, Tap, TapOptions};
use vsnoop_testbed::wait;

pub const PINS: &str = "/sys/fs/bpf/vsnoop";

/// The directory of pins of the port in this network namespace.
pub fn pins(netns: &Netns) -> Result<PathBuf> {
    let index = netns.run(|| Ok(nix::net::if_::if_nametoindex(PORT)?))?;
    Ok(Path::new(PINS).join(format!("{}-{index}", netns.inode()?)))
}

pub const PORT: &str = "vscli-tap0";
/// Prefix of the names of all namespaces.
pub const PREFIX: &str = "vscli-";
/// A command that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Moves the test into a mount namespace of its own. Called before any thread is started.
pub fn enter() -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "needs root");
    unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace")?;
    let nothing: Option<&str> = None;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
        .context("making all mounts private")?;
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), nothing)
        .context("mounting /run")?;
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), nothing)
        .context("mounting a BPF file system")?;
    ensure!(Path::new("/dev/net/tun").exists(), "no /dev/net/tun");
    for program in ["ip", "tc", "setpriv", "unshare"] {
        Command::new(program)
            .arg("--help")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("the program {program} is missing"))?;
    }
    Ok(())
}

/// A network namespace with one tap in it, which is up.
pub struct TapHost {
    pub netns: Netns,
    pub tap: Tap,
}

impl TapHost {
    pub fn new(role: &str) -> Result<Self> {
        let netns = Net::new(PREFIX).host(role)?;
        let tap = netns.tap(PORT, &TapOptions::default())?;
        netns.up(PORT)?;
        Ok(Self { netns, tap })
    }

    /// `vsnoop --netns HERE ARGUMENTS`
    pub fn vsnoop<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Ran> {
        vsnoop_in(self.netns.name(), arguments)
    }

    /// Where the port's pins are when it is attached.
    pub fn pins(&self) -> Result<PathBuf> {
        pins(&self.netns)
    }

    pub fn tc(&self, arguments: &str) -> Result<()> {
        let output =
            self.netns.command("tc").args(arguments.split_whitespace()).output().context("tc")?;
        ensure!(output.status.success(), "tc {arguments}: {}", text(&output.stderr));
        Ok(())
    }

    /// Everything of the port that vsnoop may change.
    pub fn state(&self) -> Result<Snapshot> {
        let output = self.netns.command("tc").args(["qdisc", "show"]).output().context("tc")?;
        let mut qdiscs: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
        qdiscs.sort();
        Ok(Snapshot {
            qdiscs: qdiscs.join("\n"),
            pins: list(Path::new(PINS)),
            programs: self.programs()?,
        })
    }

    /// How many tcx programs are on the egress and the ingress of the port.
    pub fn programs(&self) -> Result<(u32, u32)> {
        self.netns.run(|| tcx_programs(PORT))
    }
}

/// See [`TapHost::state`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub qdiscs: String,
    pub pins: Vec<PathBuf>,
    /// See [`TapHost::programs`].
    pub programs: (u32, u32),
}

/// Everything below it.
pub fn list(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .flat_map(|entry| {
            let mut below = list(&entry.path());
            below.push(entry.path());
            below
        })
        .collect();
    found.sort();
    found
}

/// On the egress and the ingress of a device of this thread's network namespace.
pub fn tcx_programs(device: &str) -> Result<(u32, u32)> {
    let index = nix::net::if_::if_nametoindex(device)? as i32;
    let count = |hook| {
        let mut options = libbpf_sys::bpf_prog_query_opts {
            sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
            ..Default::default()
        };
        // SAFETY: `options` states its own size and asks for no ids, only for their number.
        let result = unsafe { libbpf_sys::bpf_prog_query_opts(index, hook, &mut options) };
        ensure!(result == 0, "asking for tcx programs: {result}");
        // SAFETY: both members of the union are the same u32 count.
        Ok(unsafe { options.__bindgen_anon_1.prog_cnt })
    };
    Ok((count(Hook::ToVm.attach_type())?, count(Hook::FromVm.attach_type())?))
}

/// Result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn from_output(output: Output) -> Result<Self> {
        let code = output.status.code().context("vsnoop was killed")?;
        Ok(Self { code, out: text(&output.stdout), err: text(&output.stderr) })
    }

    pub fn ok(self) -> Result<Self> {
        ensure!(self.code == 0, "exit code {}: {}", self.code, self.err);
        Ok(self)
    }

    /// Its output in one line, whatever the width at which lines wrap.
    pub fn unfolded(&self) -> String {
        unfolded(&self.out)
    }

    pub fn json(self) -> Result<Value> {
        let ran = self.ok()?;
        serde_json::from_str(&ran.out).with_context(|| format!("not JSON: {}", ran.out))
    }

    /// Its error with `--json`.
    pub fn failure(&self) -> Result<Value> {
        let document: Value =
            serde_json::from_str(&self.out).with_context(|| format!("not JSON: {:?}", self.out))?;
        let error = document["error"].clone();
        ensure!(error["exit_code"] == self.code, "exit code {}: {document}", self.code);
        Ok(error)
    }

    /// It failed with this code and one line that contains all of `words`.
    pub fn failed(&self, code: i32, words: &[&str]) -> Result<()> {
        ensure!(self.code == code, "exit code {} instead of {code}: {}", self.code, self.err);
        ensure!(self.err.lines().count() == 1, "not one line: {}", self.err);
        for word in words {
            ensure!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        Ok(())
    }
}

pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_vsnoop")
}

/// `vsnoop ARGUMENTS`
pub fn vsnoop<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Result<Ran> {
    Ran::from_output(Command::new(program()).args(arguments).stdin(Stdio::null()).output()?)
}

pub fn vsnoop_in<S: AsRef<OsStr>>(
    netns: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<Ran> {
    let mut command = Command::new(program());
    Ran::from_output(
        command.args(["--netns", netns]).args(arguments).stdin(Stdio::null()).output()?,
    )
}

/// Runs vsnoop by another program that changes its privileges or environment.
pub fn vsnoop_under(way: &[&str], arguments: &[&str]) -> Result<Ran> {
    let mut command = Command::new(way[0]);
    Ran::from_output(
        command.args(&way[1..]).arg(program()).args(arguments).stdin(Stdio::null()).output()?,
    )
}

/// The helper's process id, if one runs.
pub fn helper_pid() -> Result<Option<i32>> {
    let status = vsnoop(["status", "--json"])?.json()?;
    Ok(status["helper"]["pid"].as_i64().map(|pid| pid as i32))
}

/// The helper's process id, once it runs: on a busy machine a command does not wait for it.
pub fn running_helper() -> Result<i32> {
    let mut found = None;
    wait_until("the helper runs", || {
        found = helper_pid()?;
        Ok(found.is_some())
    })?;
    found.context("it runs")
}

/// The process id of the helper or the engine, if one runs.
pub fn pid_of(role: &str) -> Result<Option<i32>> {
    let text = fs::read_to_string(format!("/run/vsnoop/{role}.lock")).unwrap_or_default();
    Ok(text.trim().parse().ok().filter(|pid| is_running(*pid)))
}

/// The process of this role, once it runs. A command would start a helper: this asks none.
pub fn running(role: &str) -> Result<i32> {
    let mut found = None;
    wait_until(&format!("the {role} runs"), || {
        found = pid_of(role)?;
        Ok(found.is_some())
    })?;
    found.context("it runs")
}

pub fn wait_for_no_pins() -> Result<()> {
    wait_until("no pins are left", || {
        Ok(fs::read_dir(PINS).map_or(true, |mut entries| entries.next().is_none()))
    })
}

/// Replaces the helper in the background by one whose log goes to a file. Call it while a port is
/// attached: without one a helper exits.
pub fn foreground_helper(log: &str) -> Result<Child> {
    loop {
        if let Some(pid) = helper_pid()? {
            kill(Pid::from_raw(pid), Signal::SIGTERM)?;
            wait_until("the helper in the background has ended", || Ok(!is_running(pid)))?;
        }
        let mut helper = Command::new(program());
        let helper = helper.args(["helper", "--foreground"]).stdin(Stdio::null());
        let mut helper = helper.stderr(File::create(log)?).spawn()?;
        let mut runs = false;
        // Another one may be faster: commands and the engine start helpers.
        wait_until("the helper runs, or another one does", || {
            let locked = fs::read_to_string("/run/vsnoop/helper.lock")?;
            runs = locked.trim().parse() == Ok(helper.id());
            Ok(runs || helper.try_wait()?.is_some())
        })?;
        if runs {
            return Ok(helper);
        }
    }
}

/// A zombie does not run.
pub fn is_running(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Waits until `done` returns true.
pub fn wait_until(what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
    wait::wait_until(what, PATIENCE, done)
}

/// The kernel's monotonic clock, as BPF programs read it.
pub fn now_ns() -> Result<u64> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Another tool's program on the port's egress, as long as the value lives.
pub fn foreign_program(device: &str) -> Result<EmptyProgram> {
    let index = nix::net::if_::if_nametoindex(device)?;
    Ok(EmptyProgram::attach(index, Hook::ToVm)?)
}

/// Another tool's XDP program on the device, as long as the value lives.
pub fn xdp_program(device: &str) -> Result<EmptyProgram> {
    Ok(EmptyProgram::attach_xdp(nix::net::if_::if_nametoindex(device)?)?)
}

/// Without the ends of lines, and the blanks that align columns.
pub fn unfolded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}
