//! A host of its own for a test program: processes, lock files, pins and network namespaces that no
//! other process sees, and a copy of the `vsnoop` program that can be replaced and deleted.
//!
//! The test program starts itself again as the first process of a PID namespace. When that process
//! ends, or its parent, the kernel kills all processes inside and removes their namespaces.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use vsnoop_testbed::workspace;

/// Set inside: where the program is outside.
const INSIDE: &str = "VSNOOP_FAULTS_PROGRAM";
/// The directory in accel/vsnoop-host/src/lock.rs.
const RUN: &str = "/run/vsnoop";
/// The program under test.
const PROGRAM: &str = "/run/vsnoop/program";

/// Why these tests cannot run here.
pub fn obstacle() -> Option<String> {
    (!nix::unistd::geteuid().is_root()).then(|| "they need root".into())
}

/// Once inside, `None`; outside the result of the tests, which ran inside.
pub fn enter() -> Result<Option<ExitCode>> {
    if let Some(program) = env::var_os(INSIDE) {
        furnish(Path::new(&program))?;
        return Ok(None);
    }
    let program = workspace::vsnoop_command()?;
    // Affects children only; this process cannot start threads any more.
    unshare(CloneFlags::CLONE_NEWPID).context("make a PID namespace")?;
    let mut inside = Command::new(env::current_exe().context("find this program")?);
    inside.args(env::args_os().skip(1)).env(INSIDE, program).env("VSNOOP_BIN", PROGRAM);
    // SAFETY: one system call without pointers, allowed between fork and exec.
    unsafe {
        inside.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
            Ok(())
        });
    }
    let status = inside.status().context("start the tests inside")?;
    Ok(Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn furnish(program: &Path) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace")?;
    let none = None::<&OsStr>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("part from /")?;
    for (kind, at) in
        [("proc", "/proc"), ("bpf", "/sys/fs/bpf"), ("tmpfs", RUN), ("tmpfs", "/run/netns")]
    {
        fs::create_dir_all(at).with_context(|| format!("make {at}"))?;
        mount(Some(kind), at, Some(kind), MsFlags::empty(), none)
            .with_context(|| format!("mount a {kind} at {at}"))?;
    }
    install(program)
}

/// Puts a copy of `program` in the place of the one under test, at once.
pub fn install(program: &Path) -> Result<()> {
    let fresh = PathBuf::from(format!("{PROGRAM}.new"));
    fs::copy(program, &fresh).with_context(|| format!("copy {}", program.display()))?;
    fs::rename(&fresh, PROGRAM).context("put the program in its place")
}

/// The program that was copied.
pub fn original() -> Result<PathBuf> {
    env::var_os(INSIDE).map(PathBuf::from).context("these tests run in a host of their own")
}

/// The program under test, as a file.
pub fn program() -> &'static Path {
    Path::new(PROGRAM)
}
