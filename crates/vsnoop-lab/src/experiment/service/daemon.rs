//! The service in a network namespace and a [`Place`], with the helper and the engine, which it
//! starts.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::place::Place;
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::vsnoop::{Service, Vsnoop};
use vsnoop_testbed::wait::wait_until;

/// The longest wait for what a service does.
pub const PATIENCE: Duration = Duration::from_secs(120);
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
    fn pid(self, place: &Place) -> Option<Pid> {
        let path = place.path(RUN_DIR).join(format!("{}.lock", self.name()));
        let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_it = arguments.split(|byte| *byte == 0).any(|word| word == self.name().as_bytes());
        is_it.then_some(Pid::from_raw(pid))
    }
}

/// The command, and the place in which all parts of a run start their service.
pub struct Apart {
    place: Place,
    vsnoop: Vsnoop,
}

impl Apart {
    pub fn new(vsnoop: &Vsnoop) -> Result<Self> {
        let place = Place::new(PREFIX)?;
        let vsnoop = vsnoop.in_place(&place);
        Ok(Self { place, vsnoop })
    }

    /// Names of what is pinned for ports, in whatever stage, sorted.
    fn pinned(&self) -> Vec<String> {
        let entries = fs::read_dir(self.place.path(PINS)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with(PROGRAMS)).collect();
        names.sort();
        names
    }

    /// Waits until nothing is pinned of a port, and helper and engine have ended.
    pub fn until_nothing_is_left(&self) -> Result<()> {
        wait_until("nothing of the ports is left", PATIENCE, || {
            let ended = Role::ALL.iter().all(|role| role.pid(&self.place).is_none());
            Ok(ended && self.pinned().is_empty())
        })
        .with_context(|| format!("left: {:?}", self.pinned()))
    }
}

pub struct Daemon<'a> {
    apart: &'a Apart,
    /// In the namespace of its ports.
    pub vsnoop: Vsnoop,
    service: Option<Service>,
    config: PathBuf,
    log: PathBuf,
    netns: u64,
}

impl<'a> Daemon<'a> {
    /// Starts a service in the namespace, with this configuration.
    pub fn start(
        session: &mut Session,
        apart: &'a Apart,
        netns: &Netns,
        text: &str,
    ) -> Result<Self> {
        let scratch = session.scratch();
        fs::create_dir_all(&scratch).with_context(|| format!("create {}", scratch.display()))?;
        let [config, log] = [CONFIG, LOG].map(|name| scratch.join(name));
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let (vsnoop, netns) = (apart.vsnoop.in_netns(netns.name()), netns.inode()?);
        let mut daemon = Self { apart, vsnoop, service: None, config, log, netns };
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
            pids.push(self.pid_of(role).with_context(|| format!("no {} runs", role.name()))?);
        }
        Ok(pids)
    }

    pub fn pid_of(&self, role: Role) -> Option<Pid> {
        role.pid(&self.apart.place)
    }

    /// Kills the process and waits until another one has taken its place.
    pub fn kill_role(&self, role: Role) -> Result<()> {
        let name = role.name();
        let first = self.pid_of(role).with_context(|| format!("no {name} runs"))?;
        kill(first, Signal::SIGKILL).with_context(|| format!("kill the {name}"))?;
        wait_until(&format!("another {name} runs"), PATIENCE, || {
            Ok(self.pid_of(role).is_some_and(|next| next != first))
        })
    }

    /// Waits until `count` ports are active, and helper and engine run.
    pub fn until_active(&self, count: usize) -> Result<()> {
        wait_until(&format!("{count} ports are active"), PATIENCE, || {
            let status = self.vsnoop.status_of_all()?;
            let ports = status["ports"].as_array().context("vsnoop status has no ports")?;
            let active = ports.iter().filter(|port| port["state"] == "active").count();
            Ok(active == count && Role::ALL.iter().all(|role| self.pid_of(*role).is_some()))
        })
        .with_context(|| self.log())
    }

    /// The directory that a port of this index has once it is attached.
    pub fn pins(&self, index: u32) -> PathBuf {
        self.apart.place.path(PINS).join(format!("{}-{index}", self.netns))
    }

    /// Names of what is pinned for ports, in whatever stage, sorted.
    pub fn pinned(&self) -> Vec<String> {
        self.apart.pinned()
    }

    /// What the log says, for errors.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// A number in a document of `vsnoop`.
pub fn number(document: &Value, path: &[&str]) -> Result<f64> {
    let value = path.iter().fold(document, |value, key| &value[*key]);
    value.as_f64().with_context(|| format!("vsnoop's JSON has no number {}", path.join(".")))
}
