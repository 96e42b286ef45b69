//! The background processes, helper, engine, splitter and keeper: a host has one of each. A lock
//! file has the id of the running process. This module starts them, takes them out of their
//! starter's session, and has them give up the privileges that they do not use.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::fcntl::Flock;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use vsnoop_host::error::with_causes;
use vsnoop_host::lock::{self, try_lock, try_lock_directory};
use vsnoop_host::split::namespace;
use vsnoop_host::system::{kernel, session};
use vsnoop_privileges::refusals::{
    ALL_NAMESPACES, BPF, BPF_PROGRAMS, DESCRIPTORS, NEVER, OTHER_NAMESPACES, PROGRAMS,
};
use vsnoop_privileges::{Capability, Privileges};

use crate::cli;
use crate::log::log_to;
use crate::output::watch::Interrupt;

/// A background process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Helper,
    Engine,
    Splitter,
    Keeper,
}

impl Role {
    fn lock_path(self) -> &'static str {
        match self {
            Self::Helper => "helper.lock",
            Self::Engine => "engine.lock",
            Self::Splitter => "splitter.lock",
            Self::Keeper => "keeper.lock",
        }
    }

    /// The hidden command that runs it.
    pub fn command(self) -> &'static str {
        match self {
            Self::Helper => "helper",
            Self::Engine => "engine",
            Self::Splitter => "splitter",
            Self::Keeper => "keeper",
        }
    }
}

/// Capabilities of helper and engine: each starts the other, which gets no more than its starter
/// has. BPF, NET_ADMIN: maps, links, queue disciplines, marks of frames. SYS_ADMIN: to enter
/// network namespaces, and to open maps and programs by their ids. NET_RAW: the engine's frames to
/// VMs. SYS_PTRACE: the namespaces of other users' processes, which of these holds a tap, and
/// whether it has read its ring. SYS_NICE: their priority. DAC_READ_SEARCH: to run this program
/// again where it is in a directory that only another user may search.
pub const CAPABILITIES: [Capability; 7] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_SYS_NICE,
    Capability::CAP_DAC_READ_SEARCH,
];

/// Privileges of helper and engine. They load no program of BPF and attach none, and enter network
/// namespaces only. They keep `execve`, by which each starts the other.
fn privileges() -> Privileges {
    let refused = [NEVER, &[OTHER_NAMESPACES], BPF_PROGRAMS].concat();
    Privileges { capabilities: CAPABILITIES.to_vec(), refused }
}

/// Capabilities of the splitter, which starts no process. NET_ADMIN: it restores sockets, with
/// addresses of others. SYS_ADMIN: to enter their network namespace, and to run a program of BPF.
/// SYS_NICE: its priority.
const OF_SPLITTER: [Capability; 4] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_NICE,
];

fn privileges_of_splitter() -> Privileges {
    let refused = [NEVER, &[OTHER_NAMESPACES, PROGRAMS], BPF_PROGRAMS].concat();
    Privileges { capabilities: OF_SPLITTER.to_vec(), refused }
}

/// The keeper uses none: it has descriptors, and passes them on.
fn privileges_of_keeper() -> Privileges {
    let refused = [NEVER, &[ALL_NAMESPACES, PROGRAMS, DESCRIPTORS, BPF]].concat();
    Privileges { capabilities: Vec::new(), refused }
}

/// How long to wait for a new process to take its lock.
const START: Duration = Duration::from_secs(1);

const TRIES: u32 = 10;
const TRY_AGAIN: Duration = Duration::from_millis(7);

/// How long helper and engine run without a port, in case another one comes.
const LINGER: Duration = Duration::from_secs(2);

/// The BPF file system, with the ports that an engine looks after.
const PORTS: &str = "/sys/fs/bpf";

/// Time since a look found ports. A look may take long, on a busy host: this time is not one
/// without ports.
#[derive(Debug, Default)]
pub struct Linger {
    since: Option<Instant>,
}

impl Linger {
    /// Takes what a look that has ended at `now` has found; returns whether the process may end.
    pub fn is_over(&mut self, are_ports: bool, now: Instant) -> bool {
        if are_ports {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) > LINGER
    }
}

/// Held by a process while it works.
pub struct Instance {
    _file: Flock<File>,
    _ports: Option<Flock<File>>,
}

impl Instance {
    /// Takes the lock of `role`; `None` if another process has it. A command that only checks takes
    /// the lock for a moment, so a single failure proves nothing.
    pub fn take_lock(role: Role) -> Result<Option<Self>> {
        let lock = role.lock_path();
        let Some(mut file) = in_several_tries(|| try_lock(lock))? else { return Ok(None) };
        // A process with another /run, in a container say, has lock files of its own, but the same
        // ports; two engines would send the same copies.
        let ports = match role {
            Role::Helper | Role::Keeper => None,
            Role::Engine => Some(take_ports(role, Path::new(PORTS))?),
            Role::Splitter => Some(take_ports(role, &namespace::path())?),
        };
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()))
            .with_context(|| format!("write {}/{lock}", lock::DIRECTORY))?;
        Ok(Some(Self { _file: file, _ports: ports }))
    }
}

/// `place`: what the ports have in common.
fn take_ports(role: Role, place: &Path) -> Result<Flock<File>> {
    let ports = in_several_tries(|| try_lock_directory(place))?;
    ports.with_context(|| {
        format!(
            "another {} looks after the ports of {}, with another {}",
            role.command(),
            place.display(),
            lock::DIRECTORY
        )
    })
}

fn in_several_tries(
    lock: impl Fn() -> vsnoop_host::error::Result<Option<Flock<File>>>,
) -> Result<Option<Flock<File>>> {
    let mut tries = 0..TRIES;
    loop {
        match lock()? {
            Some(file) => return Ok(Some(file)),
            None if tries.next().is_none() => return Ok(None),
            None => thread::sleep(TRY_AGAIN),
        }
    }
}

/// Id of the running process, `None` if there is none. A process that has the lock, but has not yet
/// replaced the id of a killed one, counts as none.
pub fn running_pid(role: Role) -> Option<i32> {
    match try_lock(role.lock_path()) {
        Ok(None) => {
            let path = Path::new(lock::DIRECTORY).join(role.lock_path());
            let pid = fs::read_to_string(path).ok()?.trim().parse().ok()?;
            is_one(pid, role).then_some(pid)
        }
        _ => None,
    }
}

/// Does this process have that role, and is it not another one with a reused id?
fn is_one(pid: i32, role: Role) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).skip(1).any(|word| word == role.command().as_bytes())
}

/// Starts the process unless it runs, and waits until it has its lock.
pub fn start(role: Role) -> Result<()> {
    if !matches!(try_lock(role.lock_path()), Ok(Some(_))) {
        return Ok(());
    }
    let program = own_program()?;
    let mut command = Command::new(&program);
    command.arg(role.command()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A session of its own: signals to the process group of its starter (`timeout`, a shell) must
    // not reach it.
    // SAFETY: setsid() is async-signal-safe, and so is making an error of its errno.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
    let mut child = command.spawn().with_context(|| format!("run {}", program.display()))?;
    let start = Instant::now();
    while running_pid(role).is_none() && start.elapsed() < START {
        let ended =
            child.try_wait().with_context(|| format!("look after the {}", role.command()))?;
        match ended {
            Some(status) if !status.success() => bail!("the {} ended: {status}", role.command()),
            // Another one was faster.
            Some(_) => break,
            None => thread::sleep(Duration::from_millis(2)),
        }
    }
    Ok(())
}

/// Kills the process, and waits until it is gone. Returns whether it was there.
pub fn kill_running(role: Role) -> bool {
    let Some(pid) = running_pid(role) else { return false };
    // It may just have ended by itself.
    let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
    let since = Instant::now();
    while matches!(try_lock(role.lock_path()), Ok(None)) && since.elapsed() < START {
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Warns if helper or engine end with the session of this command.
pub fn warn_of_session() {
    let roles = [Role::Helper, Role::Engine, Role::Splitter, Role::Keeper];
    let running = roles.into_iter().filter_map(running_pid);
    if let Some(group) = running.filter_map(session::shared_with).next() {
        eprintln!(
            "vsnoop: helper and engine cannot leave the control group {}, and end with it: let the \
             service attach the port (`systemctl enable --now vsnoop`), or attach it by \
             `systemd-run --scope --slice=system.slice vsnoop attach ...`",
            group.display()
        );
    }
}

/// Reaps children, and logs those that failed: helper and engine start each other.
pub fn reap_children() {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(_) | Ok(WaitStatus::StillAlive) => break,
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                tracing::warn!("process {pid}, which this one had started, was killed ({signal})");
            }
            Ok(WaitStatus::Exited(pid, code)) if code != 0 => {
                tracing::warn!("process {pid}, which this one had started, failed (exit {code})");
            }
            Ok(_) => {}
        }
    }
}

/// Runs a process, and logs why it fails: in the background it has no standard error.
pub fn run_role(
    role: Role,
    arguments: &cli::Helper,
    work: fn(&cli::Helper) -> Result<u8>,
) -> Result<u8> {
    work(arguments).inspect_err(|error| {
        if !arguments.foreground {
            tracing::error!("the {} ends: {error:#}", role.command());
        }
    })
}

/// Path of this process's program, or of one that has replaced it (an upgrade).
pub fn own_program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find the own program")?;
    match program.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
        Some(path) if Path::new(path).exists() => Ok(path.into()),
        _ => Ok(program),
    }
}

/// First step of a background process; with `foreground` it stays in its terminal.
pub fn begin(role: Role, foreground: bool) -> Result<Interrupt> {
    if !foreground {
        leave_the_terminal()?;
        session::leave();
    }
    drop(log_to(foreground)?);
    kernel::require()?;
    keep_only(&match role {
        Role::Helper | Role::Engine => privileges(),
        Role::Splitter => privileges_of_splitter(),
        Role::Keeper => privileges_of_keeper(),
    });
    Interrupt::catch_signals()
}

/// Gives up all other privileges, for ever, in this thread and its children. Where the kernel
/// refuses to take one away, this function logs an error and returns: the process keeps it.
pub fn keep_only(privileges: &Privileges) {
    if let Err(error) = privileges.drop_others() {
        tracing::error!("privileges that are not used are not given up: {}", with_causes(&error));
    }
}

/// Detaches from the terminal, and closes all files that were inherited (a lock of a script, say,
/// must not live as long as the helper).
pub fn leave_the_terminal() -> Result<()> {
    // Fails only for the leader of a process group, as after [`start`], which needs no new session.
    let _ = nix::unistd::setsid();
    // SAFETY: called first thing in a fresh process: it has not opened anything beyond standard
    // input, output and error that it would use later.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("close inherited files");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use vsnoop_privileges::testing::{
        Status, assert_nothing_of_never, assert_refused, assert_threads_inherit, call, in_children,
    };

    use super::*;

    #[test]
    fn a_look_that_takes_long_does_not_end_a_process_with_ports() {
        let (mut linger, start) = (Linger::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(!linger.is_over(true, at(0)));
        assert!(!linger.is_over(true, at(5000)));
        // Its ports are gone, which the next look found late.
        assert!(!linger.is_over(false, at(9000)));
        assert!(!linger.is_over(false, at(11_000)));
        assert!(linger.is_over(false, at(11_001)));
    }

    #[test]
    fn the_splitter_runs_no_program_and_enters_network_namespaces_only() {
        let name = "background::tests::\
                    the_splitter_runs_no_program_and_enters_network_namespaces_only";
        in_children(name, &[""], |_| {
            privileges_of_splitter().drop_others().expect("dropped");
            assert_nothing_of_never();
            assert_refused(&[libc::SYS_setns]);
            let refused = |call: std::result::Result<(), _>| call == Err(nix::errno::Errno::EPERM);
            let network = libc::CLONE_NEWNET as usize;
            assert!(!refused(call(libc::SYS_setns, [usize::MAX, network, 0, 0, 0])));
            // BPF_PROG_LOAD, BPF_LINK_CREATE; BPF_PROG_TEST_RUN is allowed.
            for command in [5, 28] {
                assert!(refused(call(libc::SYS_bpf, [command, 0, 0, 0, 0])), "{command}");
            }
            assert!(!refused(call(libc::SYS_bpf, [10, 0, 0, 0, 0])));
            let status = Status::of_thread();
            let kept = OF_SPLITTER.iter().fold(0, |bits, kept| bits | 1 << kept.index());
            assert_eq!(status.bits("CapPrm") & !kept, 0, "{:x}", status.bits("CapPrm"));
            assert_threads_inherit();
            assert!(Command::new("true").status().is_err());
        });
    }

    #[test]
    fn the_keeper_has_no_capability_and_no_call_of_bpf() {
        let name = "background::tests::the_keeper_has_no_capability_and_no_call_of_bpf";
        in_children(name, &[""], |_| {
            privileges_of_keeper().drop_others().expect("dropped");
            assert_nothing_of_never();
            assert_refused(&[libc::SYS_setns, libc::SYS_bpf, libc::SYS_pidfd_getfd]);
            assert_eq!(Status::of_thread().bits("CapPrm"), 0);
            assert_threads_inherit();
            assert!(Command::new("true").status().is_err());
        });
    }

    #[test]
    fn helper_and_engine_load_no_program_and_enter_network_namespaces_only() {
        let name = "background::tests::\
                    helper_and_engine_load_no_program_and_enter_network_namespaces_only";
        in_children(name, &[""], |_| {
            privileges().drop_others().expect("dropped");
            assert_nothing_of_never();
            assert_refused(&[libc::SYS_setns]);
            let refused = |call: std::result::Result<(), _>| call == Err(nix::errno::Errno::EPERM);
            let network = libc::CLONE_NEWNET as usize;
            assert!(!refused(call(libc::SYS_setns, [usize::MAX, network, 0, 0, 0])));
            // BPF_PROG_LOAD, BPF_PROG_ATTACH, BPF_LINK_CREATE.
            for command in [5, 8, 28] {
                assert!(refused(call(libc::SYS_bpf, [command, 0, 0, 0, 0])), "{command}");
            }
            let status = Status::of_thread();
            let kept = CAPABILITIES.iter().fold(0, |bits, kept| bits | 1 << kept.index());
            assert_eq!(status.bits("CapPrm") & !kept, 0, "{:x}", status.bits("CapPrm"));
            assert_threads_inherit();
            // To start each other.
            assert!(Command::new("true").status().is_ok_and(|status| status.success()));
        });
    }
}
