//! The service in a network namespace, with the helper and the engine, which it starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vsnoop::{Service, Vsnoop};
use vsnoop_testbed::wait::wait_until;

/// The longest wait for what a service does.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Ports of an interrupted run have gone within this time, and their helper has ended.
const LEAVING: Duration = Duration::from_secs(10);
const RUN_DIR: &str = "/run/vsnoop";
const PINS: &str = "/sys/fs/bpf/vsnoop";
/// Pins of programs that ports share; they stay for the next port.
const PROGRAMS: &str = "programs-";
const CONFIG: &str = "service.toml";
const LOG: &str = "service.log";

/// A process beside the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Helper,
    Engine,
}

impl Role {
    pub const ALL: [Self; 2] = [Self::Helper, Self::Engine];

    fn name(self) -> &'static str {
        match self {
            Self::Helper => "helper",
            Self::Engine => "engine",
        }
    }

    /// The process of this role, as its lock file says; `None` while there is none.
    pub fn pid(self) -> Option<Pid> {
        let path = Path::new(RUN_DIR).join(format!("{}.lock", self.name()));
        let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_it = arguments.split(|byte| *byte == 0).any(|word| word == self.name().as_bytes());
        is_it.then_some(Pid::from_raw(pid))
    }

    /// Kills the process and waits until another one has taken its place.
    pub fn kill(self) -> Result<()> {
        let first = self.pid().with_context(|| format!("no {} runs", self.name()))?;
        kill(first, Signal::SIGKILL).with_context(|| format!("kill the {}", self.name()))?;
        wait_until(&format!("another {} runs", self.name()), PATIENCE, || {
            Ok(self.pid().is_some_and(|next| next != first))
        })
    }
}

pub struct Daemon {
    /// In the namespace of its ports.
    pub vsnoop: Vsnoop,
    service: Option<Service>,
    config: PathBuf,
    log: PathBuf,
    netns: u64,
}

impl Daemon {
    /// Starts a service in the namespace, with this configuration.
    pub fn start(
        session: &mut Session,
        vsnoop: &Vsnoop,
        netns: &Netns,
        text: &str,
    ) -> Result<Self> {
        let scratch = session.scratch();
        fs::create_dir_all(&scratch).with_context(|| format!("create {}", scratch.display()))?;
        let [config, log] = [CONFIG, LOG].map(|name| scratch.join(name));
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let vsnoop = vsnoop.in_netns(netns.name());
        let mut daemon = Self { vsnoop, service: None, config, log, netns: netns.inode()? };
        daemon.restart(session)?;
        Ok(daemon)
    }

    /// Starts a service again that was killed, and waits until it answers.
    pub fn restart(&mut self, session: &mut Session) -> Result<()> {
        let service = self.vsnoop.serve(&self.config, &self.log)?;
        session.note_process(service.pid())?;
        let pid = service.pid().as_raw();
        self.service = Some(service);
        wait_until("the service answers", PATIENCE, || {
            let service = self.vsnoop.status_of_all()?["service"].take();
            Ok(service["running"] == true && service["pid"] == pid)
        })
        .with_context(|| self.log())
    }

    /// Kills it by SIGKILL.
    pub fn kill(&mut self) {
        self.service = None;
    }

    pub fn pid(&self) -> Result<Pid> {
        Ok(self.service.as_ref().context("no service runs")?.pid())
    }

    /// Of the service, the helper and the engine.
    pub fn pids(&self) -> Result<Vec<Pid>> {
        let mut pids = vec![self.pid()?];
        for role in Role::ALL {
            pids.push(role.pid().with_context(|| format!("no {} runs", role.name()))?);
        }
        Ok(pids)
    }

    /// Waits until `count` ports are active, and helper and engine run.
    pub fn until_active(&self, count: usize) -> Result<()> {
        wait_until(&format!("{count} ports are active"), PATIENCE, || {
            let status = self.vsnoop.status_of_all()?;
            let ports = status["ports"].as_array().context("vsnoop status has no ports")?;
            let active = ports.iter().filter(|port| port["state"] == "active").count();
            Ok(active == count && Role::ALL.iter().all(|role| role.pid().is_some()))
        })
        .with_context(|| self.log())
    }

    /// The directory that a port of this index has once it is attached.
    pub fn pins(&self, index: u32) -> PathBuf {
        Path::new(PINS).join(format!("{}-{index}", self.netns))
    }

    /// What the log says, for errors.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Names of what is pinned for ports, in whatever stage, sorted.
pub fn pinned() -> Vec<String> {
    let entries = fs::read_dir(PINS).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with(PROGRAMS)).collect();
    names.sort();
    names
}

/// Refuses a host with ports or a service of others.
pub fn require_unused_host(vsnoop: &Vsnoop) -> Result<()> {
    wait_until("the host is unused", LEAVING, || {
        let status = vsnoop.status_of_all()?;
        let is_unused = status["ports"].as_array().is_some_and(Vec::is_empty);
        // A helper that is about to end would be no help to the next service.
        let ended = Role::ALL.iter().all(|role| role.pid().is_none());
        Ok(is_unused && ended && status["service"]["running"] == false)
    })
    .context(
        "this experiment starts and kills a service, and counts what it leaves: detach all ports \
         (`vsnoop status`) and stop the service first",
    )
}

/// Waits until no port is attached, nothing of one is pinned, and helper and engine have ended.
pub fn until_nothing_is_left() -> Result<()> {
    wait_until("nothing of the ports is left", PATIENCE, || {
        Ok(pinned().is_empty() && Role::ALL.iter().all(|role| role.pid().is_none()))
    })
    .with_context(|| format!("left: {:?}", pinned()))
}

/// A number in a document of `vsnoop`.
pub fn number(document: &Value, path: &[&str]) -> Result<f64> {
    let value = path.iter().fold(document, |value, key| &value[*key]);
    value.as_f64().with_context(|| format!("vsnoop's JSON has no number {}", path.join(".")))
}
