//! Which privileges service, helper and engine keep, under the service and by a command alone.

use std::fs::{self, Permissions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use caps::Capability;
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_privileges::{Refusal, refuse};
use vsnoop_testbed::workspace;

use crate::hold::ConfigFile;
use crate::packages::{UNIT, of_unit};
use crate::priority::end_background;
use crate::sandbox::{PORT, Ran, TapHost, pid_of, program, running, vsnoop, wait_until};
use crate::service::{Service, until_port};

const BACKGROUND: [Capability; 7] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_SYS_NICE,
    Capability::CAP_DAC_READ_SEARCH,
];
const OF_SPLITTER: [Capability; 4] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_NICE,
];
/// Beside those of [`BACKGROUND`].
const SERVICE: [Capability; 1] = [Capability::CAP_PERFMON];
const LOW_PORT: [Capability; 1] = [Capability::CAP_NET_BIND_SERVICE];

const NOBODY: u32 = 65534;
/// How often each of them is killed.
const KILLS: usize = 3;
const CONFIG: &str = "[[port]]\nhold = \"1M\"\n";

pub fn trials() -> Vec<Trial> {
    trials![
        helper_and_engine_of_a_command_keep_what_they_use,
        the_splitter_keeps_less_than_those_who_start_it,
        the_service_and_what_it_starts_keep_what_they_use,
        a_service_may_open_a_low_port_and_its_helper_may_not,
        what_replaces_a_killed_process_has_the_same_privileges,
        a_killed_process_is_replaced_where_another_user_keeps_the_program,
        the_unit_gives_the_service_what_it_keeps,
        a_service_that_may_install_no_filter_says_so_and_goes_on,
        a_tap_that_another_user_holds_is_known,
        a_configuration_that_only_another_user_may_read_is_reloaded,
    ]
}

/// Privileges of every thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    permitted: u64,
    effective: u64,
    /// Inheritable and ambient ones.
    passed_on: [u64; 2],
    bounding: u64,
    no_new_privs: bool,
    /// Is there any, and their number.
    filters: (bool, u32),
}

impl Kept {
    fn by(pid: i32) -> Result<Self> {
        let mut of_threads = Vec::new();
        for task in fs::read_dir(format!("/proc/{pid}/task")).context("it has ended")? {
            // One may end meanwhile.
            let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
            of_threads.push(Self::read(&status)?);
        }
        let first = of_threads.first().context("it has no thread")?.clone();
        ensure!(of_threads.iter().all(|other| *other == first), "{of_threads:?}");
        Ok(first)
    }

    fn read(status: &str) -> Result<Self> {
        let field = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.map(str::trim).with_context(|| format!("no {name} in {status}"))
        };
        let bits = |name: &str| Ok::<_, anyhow::Error>(u64::from_str_radix(field(name)?, 16)?);
        Ok(Self {
            permitted: bits("CapPrm")?,
            effective: bits("CapEff")?,
            passed_on: [bits("CapInh")?, bits("CapAmb")?],
            bounding: bits("CapBnd")?,
            no_new_privs: field("NoNewPrivs")? == "1",
            filters: (field("Seccomp")? == "2", field("Seccomp_filters")?.parse()?),
        })
    }

    /// It has these capabilities, as far as this process has them, and can gain none.
    fn is(&self, capabilities: &[&[Capability]]) -> Result<()> {
        let bits = mask(capabilities)?;
        ensure!(self.permitted == bits && self.effective == bits, "{self:x?}, not {bits:x}");
        ensure!(self.passed_on == [0, 0] && self.no_new_privs && self.filters.0, "{self:x?}");
        ensure!(self.bounding & bits == bits, "{self:x?}");
        Ok(())
    }
}

fn mask(capabilities: &[&[Capability]]) -> Result<u64> {
    let own = Kept::by(std::process::id() as i32)?;
    let bits = capabilities.concat().iter().fold(0, |bits, it| bits | 1 << it.index());
    Ok(bits & own.permitted)
}

/// A tap, and a service that has attached it with a hold.
fn attached_by_service(role: &str, config: &str) -> Result<(TapHost, Service)> {
    let host = TapHost::new(role)?;
    end_background()?;
    let config = ConfigFile::new(&host, config)?;
    let service = Service::start(&host.netns, Some(&config))?;
    service.until_logged(&format!("port {PORT}: accelerated"))?;
    Ok((host, service))
}

fn end(host: &TapHost, service: Service) -> Result<()> {
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn helper_and_engine_of_a_command_keep_what_they_use() -> Result<()> {
    let host = TapHost::new("least")?;
    end_background()?;
    host.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    for role in ["helper", "engine"] {
        let kept = Kept::by(running(role)?)?;
        kept.is(&[&BACKGROUND]).context(role)?;
        ensure!(kept.bounding == kept.permitted, "{role}: {kept:x?}");
    }
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn the_splitter_keeps_less_than_those_who_start_it() -> Result<()> {
    let host = TapHost::new("least2")?;
    end_background()?;
    host.vsnoop(["attach", PORT, "--hold", "1M", "--downloads", "on"])?.ok()?;
    let first = running("splitter")?;
    Kept::by(first)?.is(&[&OF_SPLITTER]).context("of a command")?;
    kill(Pid::from_raw(first), Signal::SIGKILL)?;
    wait_until("another one runs", || Ok(pid_of("splitter")?.is_some_and(|now| now != first)))?;
    Kept::by(running("splitter")?)?.is(&[&OF_SPLITTER]).context("of the helper")?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn the_service_and_what_it_starts_keep_what_they_use() -> Result<()> {
    let (host, service) = attached_by_service("keeps", CONFIG)?;
    let of_service = Kept::by(service.pid())?;
    of_service.is(&[&BACKGROUND, &SERVICE])?;
    ensure!(of_service.bounding == of_service.permitted, "{of_service:x?}");
    for role in ["helper", "engine"] {
        let kept = Kept::by(running(role)?)?;
        kept.is(&[&BACKGROUND]).context(role)?;
        ensure!(kept.bounding & !of_service.bounding == 0, "{role}: {kept:x?}");
    }
    end(&host, service)
}

fn a_service_may_open_a_low_port_and_its_helper_may_not() -> Result<()> {
    let at = "127.0.0.1:975";
    let (host, service) =
        attached_by_service("low", &format!("{CONFIG}[metrics]\nlisten = \"{at}\"\n"))?;
    service.until_logged(&format!("http://{at}/metrics"))?;
    Kept::by(service.pid())?.is(&[&BACKGROUND, &SERVICE, &LOW_PORT])?;
    for role in ["helper", "engine"] {
        Kept::by(running(role)?)?.is(&[&BACKGROUND]).context(role)?;
    }
    end(&host, service)
}

fn what_replaces_a_killed_process_has_the_same_privileges() -> Result<()> {
    let (host, service) = attached_by_service("again", CONFIG)?;
    let first = [Kept::by(running("helper")?)?, Kept::by(running("engine")?)?];
    for _ in 0..KILLS {
        for (role, kept) in ["helper", "engine"].into_iter().zip(&first) {
            let pid = running(role)?;
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
            wait_until("another one runs", || Ok(pid_of(role)?.is_some_and(|now| now != pid)))?;
            let now = Kept::by(running(role)?)?;
            // Filters, too, however often one process has started the other.
            ensure!(now == *kept, "{role}: {now:x?}, not {kept:x?}");
        }
    }
    end(&host, service)
}

/// Removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Root runs a program that a user has built at home.
fn a_killed_process_is_replaced_where_another_user_keeps_the_program() -> Result<()> {
    let host = TapHost::new("home")?;
    end_background()?;
    let home = Directory::new(host.netns.name())?;
    let own = home.0.join("vsnoop");
    fs::copy(program(), &own)?;
    fs::set_permissions(&home.0, Permissions::from_mode(0o700))?;
    chown(&home.0, Some(NOBODY), Some(NOBODY))?;
    let mut attach = Command::new(&own);
    attach.args(["--netns", host.netns.name(), "attach", PORT, "--hold", "1M"]);
    Ran::from_output(attach.stdin(Stdio::null()).output()?)?.ok()?;
    for role in ["engine", "helper"] {
        let pid = running(role)?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        wait_until("another one runs", || Ok(pid_of(role)?.is_some_and(|now| now != pid)))?;
        let other = fs::read_link(format!("/proc/{}/exe", running(role)?))?;
        ensure!(other == own, "{role}: {}", other.display());
    }
    host.vsnoop(["detach", PORT])?.ok()?;
    end_background()
}

fn the_unit_gives_the_service_what_it_keeps() -> Result<()> {
    let wanted = [&BACKGROUND[..], &SERVICE].concat();
    let wanted = wanted.iter().map(ToString::to_string).collect();
    ensure!(of_unit()? == wanted, "{:?} and {wanted:?}", of_unit()?);
    let unit = fs::read_to_string(workspace::root()?.join(UNIT))?;
    let calls =
        unit.lines().find_map(|line| line.strip_prefix("SystemCallFilter=")).context("none")?;
    for call in ["bpf", "setns", "pidfd_getfd", "seccomp"] {
        ensure!(calls.split(' ').any(|found| found == call), "{call} is not in {calls}");
    }
    Ok(())
}

fn a_service_that_may_install_no_filter_says_so_and_goes_on() -> Result<()> {
    let host = TapHost::new("nofilter")?;
    end_background()?;
    let config = ConfigFile::new(&host, CONFIG)?;
    let mut command = Service::command(&host.netns, Some(&config));
    let forbid = || refuse(&[Refusal::Call(libc::SYS_seccomp)]).map_err(std::io::Error::other);
    // SAFETY: between fork and exec only system calls are made, beside allocations that this
    // process makes in no other thread at that time.
    unsafe { command.pre_exec(forbid) };
    let service = Service::run(command, &host.netns)?;
    service.until_logged(&format!("port {PORT}: accelerated"))?;
    let log = service.log()?;
    let said = "privileges that are not used are not given up: installing the filter";
    ensure!(log.lines().filter(|line| line.contains(said)).count() == 1, "{log}");
    // What can be given up is.
    Kept::by(service.pid())?.is(&[&BACKGROUND, &SERVICE])?;
    for role in ["helper", "engine"] {
        Kept::by(running(role)?)?.is(&[&BACKGROUND]).context(role)?;
    }
    end(&host, service)
}

/// Ended when dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_tap_that_another_user_holds_is_known() -> Result<()> {
    let TapHost { netns, tap } = TapHost::new("other")?;
    let mut sleeping = Command::new("setpriv");
    sleeping.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"]);
    let fd = tap.as_fd().as_raw_fd();
    // SAFETY: between fork and exec there is one system call. It makes a descriptor that exec does
    // not close.
    unsafe {
        sleeping.pre_exec(move || match libc::dup2(fd, 3) {
            3 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    let holder = Holder(sleeping.stdin(Stdio::null()).spawn()?);
    drop(tap);
    // The service keeps the name that a process has when it finds it.
    let name = format!("/proc/{}/comm", holder.0.id());
    wait_until("setpriv has become what it runs", || Ok(fs::read_to_string(&name)? == "sleep\n"))?;
    let config =
        ConfigFile::for_netns(&netns, "[[port]]\nname = \"theirs\"\nprocess = \"sleep\"\n")?;
    let service = Service::start(&netns, Some(&config))?;
    until_port(&netns, "their tap is attached", |port| port["table"] == "theirs")?;
    service.end(Signal::SIGTERM)?;
    drop(holder);
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn a_configuration_that_only_another_user_may_read_is_reloaded() -> Result<()> {
    let host = TapHost::new("theirs")?;
    let config = ConfigFile::new(&host, "[[port]]\nname = \"first\"\ninterface = \"none\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    config.write("[[port]]\nname = \"second\"\ninterface = \"none\"\n")?;
    fs::set_permissions(&config.path, Permissions::from_mode(0o600))?;
    chown(&config.path, Some(NOBODY), Some(NOBODY))?;
    let reloaded = vsnoop(["reload", "--json"])?.json()?;
    ensure!(reloaded["tables"] == serde_json::json!(["second"]), "{reloaded}");
    service.end(Signal::SIGTERM)
}
